"""A row that contradicts itself is described with one sentence per contradiction."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pool.core.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.core.records import Claim, Held, Org, SeenWorker
from pool.core.states import MoveReason, Source, State

AT = datetime(2030, 1, 1, tzinfo=UTC)
POD = {"pod_uid": "uid", "endpoint": "http://w-1:8080"}
CLAIM = {"claim_id": ClaimId("c-1"), "org": OrgId("acme")}
PARKED = {"org": OrgId("acme"), "hot_idle_since": AT, "hot_idle_until": AT}

SOUND: dict[State, dict[str, Any]] = {
    State.SPAWNING: {},
    State.IDLE: POD,
    State.RESERVED: POD | CLAIM,
    State.ACTIVATING: POD | CLAIM,
    State.HOT: POD | CLAIM,
    State.HOT_IDLE: POD | PARKED,
    State.DRAINING: {},
    State.RETIRED: {},
    State.LOST: {},
}


def a_worker(state: State, **changes: Any) -> SeenWorker:
    """A consistent row of that state, except for what the test changes."""
    row = SeenWorker(
        id=WorkerId("w-1"),
        profile=ProfileName("default"),
        image="image",
        revision="rev",
        state=state,
        epoch=1,
        grace_s=600,
        created_at=AT,
        state_since=AT,
    )
    return replace(row, **SOUND[state] | changes)


@pytest.mark.parametrize("state", State, ids=str)
def test_a_sound_row_of_any_state_has_no_violations(state: State) -> None:
    assert a_worker(state).violations() == []


@pytest.mark.parametrize("state", [State.DRAINING, State.RETIRED, State.LOST], ids=str)
def test_a_draining_or_ended_row_may_keep_its_org_and_pod(state: State) -> None:
    assert a_worker(state, org=OrgId("acme"), **POD).violations() == []


@pytest.mark.parametrize("state", [State.RESERVED, State.ACTIVATING, State.HOT], ids=str)
def test_a_busy_worker_may_be_leaving(state: State) -> None:
    assert a_worker(state, leaving_since=AT, leaving_reason=MoveReason.DISRUPTED).violations() == []


@pytest.mark.parametrize(
    ("states", "changes", "sentence"),
    [
        ("reserved activating hot", {"claim_id": None}, "a worker has a claim exactly in the claimed states"),
        (
            "spawning idle hot_idle draining retired lost",
            {"claim_id": "c-1"},
            "a worker has a claim exactly in the claimed states",
        ),
        ("reserved activating hot hot_idle", {"org": None}, "a bound worker has an org"),
        ("idle", {"org": "acme"}, "an idle worker has no org"),
        ("idle reserved activating hot hot_idle", {"pod_uid": None}, "a worker past spawning has a pod"),
        ("hot_idle", {"hot_idle_until": None}, "exactly a parked worker has hot_idle_until"),
        (
            "spawning idle reserved activating hot draining retired lost",
            {"hot_idle_until": AT},
            "exactly a parked worker has hot_idle_until",
        ),
        ("idle hot_idle", {"leaving_since": AT}, "a leaving worker is neither idle nor parked"),
    ],
)
def test_only_the_violated_rule_is_named(states: str, changes: dict[str, Any], sentence: str) -> None:
    for state in map(State, states.split()):
        assert a_worker(state, **changes).violations() == [sentence], state


def test_every_violated_rule_of_a_row_is_named() -> None:
    assert len(a_worker(State.IDLE, claim_id="c-1", org="acme", pod_uid=None).violations()) == 3


def test_a_claim_has_the_epoch_of_its_worker() -> None:
    claim = Claim(
        id=ClaimId("c-1"),
        worker_id=WorkerId("w-1"),
        org=OrgId("acme"),
        profile=ProfileName("default"),
        request_pk=RequestPk("r-1"),
        epoch=7,
        source=Source.WARM,
        lease_s=30,
        ttl_s=None,
        lease_expires_at=None,
        ended_at=None,
        ended_why=None,
        counted=False,
        abandoned=False,
        release_condition=None,
    )
    assert claim.held == Held(worker_id=WorkerId("w-1"), claim_id=ClaimId("c-1"), epoch=7)


@pytest.mark.parametrize(
    ("floor", "cap", "counts"), [(0, 0, False), (1, 0, True), (0, 1, True), (2, 1, True)]
)
def test_parked_workers_are_counted_only_for_a_floor_or_a_cap(floor: int, cap: int, counts: bool) -> None:
    assert Org(id=OrgId("acme"), hot_idle_floor=floor, hot_idle_cap=cap).counts_parked is counts
