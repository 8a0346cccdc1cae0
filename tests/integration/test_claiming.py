"""Acquire, renew, release and cancel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pool.core.contract import Acquire, Granted, Pending, Release, Renew
from pool.core.errors import InvalidInput
from pool.core.ids import ClaimId, OrgId
from pool.core.records import ReplyTo
from pool.core.states import Condition, Reason, Source, State
from pool.lifecycle import answering, claiming, effects
from pool.lifecycle.claiming import Call
from pool.lifecycle.deps import Deps
from pool.store import requests
from tests.support.convergence import WillingWorkers
from tests.support.world import World

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_warm_worker_is_granted_with_all_that_its_holder_needs(world: World) -> None:
    (worker,) = world.warm(1)
    granted = world.granted("acme")
    assert granted.worker_id == worker
    assert granted.source is Source.WARM
    assert granted.endpoint == f"http://{worker}:8080"
    assert world.state_of(worker) is State.HOT
    assert world.worker(worker).org == "acme"


def test_two_claimers_never_get_one_worker(world: World) -> None:
    world.warm(2)
    first, second = world.granted("acme"), world.granted("bolt")
    assert first.worker_id != second.worker_id
    assert world.refused("cats").reason is Reason.NO_WARM_WORKER


def test_a_released_worker_goes_back_to_its_own_org_first(world: World) -> None:
    world.warm(2)
    first = world.granted("acme")
    assert world.release(first.claim_id) == "released"
    again = world.granted("acme")
    assert again.worker_id == first.worker_id
    assert again.source is Source.HOT_IDLE
    assert again.epoch > first.epoch
    assert again.token != first.token


def test_a_worker_that_served_one_org_never_serves_another(world: World) -> None:
    world.warm(1)
    world.release(world.granted("acme").claim_id)
    assert world.refused("bolt").reason is Reason.NO_WARM_WORKER


def at_once(deps: Deps, call: Call) -> Any:
    """Serve it as the lane does: in a batch, without waiting for a row."""
    (decided,), after = claiming.serve(deps, [call])
    effects.finish(deps, after)
    return decided


@pytest.mark.parametrize("renew", [claiming.renew, at_once])
def test_signed_caller_renews_only_its_own_claims(world: World, renew: Any) -> None:
    world.warm(1)
    claim = world.granted("acme").claim_id

    def until() -> Any:
        return [c.lease_expires_at for c in world.rows("claims")]

    before = until()
    world.pass_time(1)
    assert renew(world.deps, Renew(claim_ids=(ClaimId(claim),), org=OrgId("bolt"))) == {
        "renewed": {},
        "gone": {claim: "unknown_claim"},
    }
    assert until() == before
    assert claim in renew(world.deps, Renew(claim_ids=(ClaimId(claim),), org=OrgId("acme")))["renewed"]


@pytest.mark.parametrize("release", [claiming.release, at_once])
@pytest.mark.parametrize("condition", list(Condition))
def test_signed_caller_releases_only_its_own_claims(world: World, release: Any, condition: Condition) -> None:
    (worker,) = world.warm(1)
    claim = world.granted("acme").claim_id

    def released(org: str) -> str:
        asked = Release(claim_id=ClaimId(claim), condition=condition, org=OrgId(org))
        return str(release(world.deps, asked)["outcome"])

    assert released("bolt") == "unknown_claim"
    assert world.state_of(worker) is State.HOT
    assert released("acme") == "released"
    assert released("bolt") == "unknown_claim"


def test_a_counted_parked_worker_is_granted_again_after_counting_ended(world: World) -> None:
    """The floor that it counted for was removed meanwhile."""
    world.warm(1)
    world.org("acme", hot_idle_floor=1)
    first = world.granted("acme")
    world.release(first.claim_id)
    assert [o.parked for o in world.rows("orgs") if o.id == "acme"] == [1]
    world.org("acme", hot_idle_floor=0)
    again = world.granted("acme")
    assert (again.worker_id, again.source) == (first.worker_id, Source.HOT_IDLE)
    assert [o.parked for o in world.rows("orgs") if o.id == "acme"] == [0]


def test_a_profile_is_never_matched_by_another(world: World) -> None:
    world.profile("big")
    world.warm(1)
    assert world.refused("acme", profile="big").reason is Reason.NO_WARM_WORKER


def test_the_same_request_gets_the_same_answer(world: World) -> None:
    world.warm(2)
    first = world.granted("acme", request_id="r1")
    again = world.granted("acme", request_id="r1", task_id="another")
    assert again.as_dict() == first.as_dict()


def test_the_same_request_id_of_another_org_is_another_request(world: World) -> None:
    world.warm(2)
    assert (
        world.granted("acme", request_id="r1").worker_id != world.granted("bolt", request_id="r1").worker_id
    )


def test_the_same_request_with_other_arguments_is_invalid(world: World) -> None:
    world.warm(2)
    world.granted("acme", request_id="r1")
    answer = world.refused("acme", request_id="r1", lease_s=60)
    assert answer.reason is Reason.INVALID
    assert "request_id" in answer.detail


def test_a_request_whose_claim_has_ended_is_spent(world: World) -> None:
    world.warm(1)
    granted = world.granted("acme", request_id="r1")
    world.release(granted.claim_id)
    answer = world.refused("acme", request_id="r1")
    assert answer.reason is Reason.REQUEST_SPENT
    assert answer.detail == "request_id 'r1' was already granted and its claim has ended; use a new one"
    assert world.state_of(granted.worker_id) is State.HOT_IDLE
    with world.store.read() as tx:
        request = requests.find_unlocked(tx, OrgId("acme"), "r1")
        assert request is not None
        stored = answering.of_row(tx, request)
    assert stored is not None
    assert stored.answer(world.deps) == answer


def test_a_refused_request_is_evaluated_again(world: World) -> None:
    assert world.refused("acme", request_id="r1").reason is Reason.NO_WARM_WORKER
    world.warm(1)
    world.granted("acme", request_id="r1")


def test_a_stale_holder_can_neither_renew_nor_release(world: World) -> None:
    world.warm(1)
    old = world.granted("acme")
    world.release(old.claim_id)
    new = world.granted("acme")
    assert new.worker_id == old.worker_id
    assert world.renew(old.claim_id) == {"renewed": {}, "gone": {old.claim_id: "released"}}
    assert world.release(old.claim_id) == "already_released"
    assert world.release(old.claim_id, "tainted") == "already_released"
    assert world.state_of(new.worker_id) is State.HOT


def test_releasing_an_unknown_claim_returns_unknown_claim(world: World) -> None:
    assert world.release("c-unknown") == "unknown_claim"


def test_a_tainted_release_retires(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted().claim_id, "tainted")
    assert world.state_of(worker) is State.DRAINING
    world.settle()
    assert world.state_of(worker) is State.RETIRED
    assert worker not in world.driver.pods


def test_renewal_of_many_claims_extends_live_ones_and_names_ended_ones(world: World) -> None:
    world.warm(2)
    one, two = world.granted(), world.granted()
    world.release(two.claim_id)
    world.pass_time(10)
    answer = world.renew(one.claim_id, two.claim_id, "c-unknown")
    assert list(answer["renewed"]) == [one.claim_id]
    assert answer["renewed"][one.claim_id] > one.as_dict()["lease_expires_at"]
    assert answer["gone"] == {two.claim_id: "released", "c-unknown": "unknown_claim"}


@pytest.mark.parametrize(
    ("call", "org", "deployment", "expected"), [(7, 5, 3, 7), (None, 5, 3, 5), (None, None, 3, 3)]
)
def test_ttl_comes_from_the_call_then_the_org_then_the_deployment(
    world: World, call: int | None, org: int | None, deployment: int, expected: int
) -> None:
    world.configure(hot_idle_ttl_s=deployment)
    world.org("acme", hot_idle_ttl_s=org)
    (worker,) = world.warm(1)
    world.release(world.granted(ttl_s=call).claim_id)
    row = world.worker(worker)
    assert row.hot_idle_until is not None
    assert row.hot_idle_since is not None
    assert round((row.hot_idle_until - row.hot_idle_since).total_seconds()) == expected


@pytest.mark.parametrize(
    ("call", "org"), [(1000, None), (None, 1000), (1000, 5)], ids=["call", "org", "both"]
)
def test_ttl_of_a_call_or_an_org_is_lowered_to_the_longest(
    world: World, call: int | None, org: int | None
) -> None:
    world.configure(hot_idle_ttl_s=3, hot_idle_ttl_max_s=10)
    world.org("acme", hot_idle_ttl_s=org)
    (worker,) = world.warm(1)
    world.release(world.granted(ttl_s=call).claim_id)
    row = world.worker(worker)
    assert row.hot_idle_until is not None
    assert row.hot_idle_since is not None
    assert round((row.hot_idle_until - row.hot_idle_since).total_seconds()) == 10


def test_grant_has_the_ttl_in_force_if_a_longer_one_was_requested(world: World) -> None:
    """However the answer is delivered."""
    world.configure(hot_idle_ttl_s=3, hot_idle_ttl_max_s=10)
    world.profile("bound", activation_path="/configure", warm_target=0)
    world.deps = replace(world.deps, worker_api=WillingWorkers())
    world.warm(1)
    at_once = world.acquire(task_id="t", request_id="r", ttl_s=1000)
    assert isinstance(at_once, Granted)
    assert at_once.as_dict()["ttl_s"] == 10
    assert world.acquire(request_id="r", ttl_s=1000) == at_once
    waited, activated = world.waits(ttl_s=1000), world.waits(ttl_s=1000, profile="bound")
    world.warm(1)
    world.warm(1, "bound")
    world.settle()
    # The process died before it marked its answer, so the pass delivers it from the row.
    world.pass_time(4)
    world.run_pass("reap")
    for task in ("t", waited, activated):
        (answer,) = world.broker.answers_for(task)
        assert answer["ttl_s"] == 10


def test_grant_has_no_ttl_if_the_requested_one_is_in_force(world: World) -> None:
    world.configure(hot_idle_ttl_s=3, hot_idle_ttl_max_s=10)
    world.warm(2)
    assert "ttl_s" not in world.granted(ttl_s=10).as_dict()
    assert "ttl_s" not in world.granted().as_dict()


def test_ttl_zero_retires_at_release(world: World) -> None:
    (worker,) = world.warm(1)
    world.release(world.granted(ttl_s=0).claim_id)
    assert world.state_of(worker) is State.DRAINING


def test_at_the_orgs_cap_the_refusal_is_typed_and_others_are_served(world: World) -> None:
    world.warm(3)
    world.org("acme", cap=1)
    world.granted("acme")
    answer = world.refused("acme")
    assert answer.reason is Reason.ORG_CAP
    assert answer.retry_after_s
    world.granted("bolt")


def test_a_release_frees_the_orgs_slot(world: World) -> None:
    world.warm(1)
    world.org("acme", cap=1)
    world.release(world.granted("acme").claim_id)
    world.granted("acme")


def test_a_cap_set_while_claims_live_counts_them(world: World) -> None:
    world.warm(3)
    first, _second = world.granted("acme"), world.granted("acme")
    world.org("acme", cap=2)
    assert world.refused("acme").reason is Reason.ORG_CAP
    world.release(first.claim_id)
    world.granted("acme")


def test_a_cap_taken_away_and_set_again_counts_right(world: World) -> None:
    world.warm(4)
    world.org("acme", cap=1)
    first = world.granted("acme")
    world.org("acme", cap=0)
    second = world.granted("acme")
    world.release(first.claim_id)
    world.org("acme", cap=2)
    world.check()
    world.granted("acme")
    assert world.refused("acme").reason is Reason.ORG_CAP
    world.release(second.claim_id)


def test_at_the_pools_cap_the_reason_is_pool_cap(world: World) -> None:
    world.configure(max_workers=1)
    world.warm(1)
    world.granted("acme")
    assert world.refused("bolt").reason is Reason.POOL_CAP


def test_no_cap_means_no_cap(world: World) -> None:
    world.configure(max_workers=0)
    world.org("acme", cap=0)
    world.warm(20)
    assert len({world.granted("acme").worker_id for _ in range(20)}) == 20


def test_an_unknown_org_is_refused_unless_orgs_are_created_automatically(world: World) -> None:
    world.warm(1)
    world.configure(orgs_auto_create=False)
    assert world.refused("unknown").reason is Reason.UNKNOWN_ORG
    assert world.rows("requests") == []
    world.configure(orgs_auto_create=True)
    world.granted("unknown")


def test_an_unknown_profile_is_refused_and_nothing_is_written(world: World) -> None:
    answer = world.refused("acme", profile="nope")
    assert answer.reason is Reason.UNKNOWN_PROFILE
    assert "default" in answer.detail
    assert world.rows("requests") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("org", ""), ("org", 7), ("org", None), ("profile", "No!"), ("lease_s", 4), ("lease_s", 3601), ("lease_s", True), ("lease_s", "30"),
     ("lease_s", 7.5), ("wait_s", -1), ("wait_s", 3601), ("wait_s", float("nan")), ("ttl_s", -1), ("ttl_s", 0.5), ("request_id", ""),
     ("request_id", 5), ("request_id", "x" * 300)],
)  # fmt: skip
def test_bad_input_names_its_field_and_writes_nothing(world: World, name: str, value: object) -> None:
    world.warm(1)
    with pytest.raises(InvalidInput) as caught:
        world.acquire(**{"org": "acme", name: value})  # type: ignore[arg-type]
    assert caught.value.field == name
    assert name in caught.value.detail
    assert world.rows("requests") == []


def test_a_paused_pool_grants_nothing(world: World) -> None:
    from pool.store import orgs

    world.warm(1)
    with world.store.write() as tx:
        orgs.pause(tx, paused=True)
    assert world.refused("acme").reason is Reason.PAUSED
    assert world.rows("claims") == []


def test_a_dead_cluster_api_slows_spawns_and_never_acquires_of_warm_workers(world: World) -> None:
    world.warm(2)
    world.driver.down = True
    world.driver.calls.clear()
    first = world.granted("acme")
    assert world.release(first.claim_id) == "released"
    assert world.granted("acme").worker_id == first.worker_id
    world.granted("bolt")
    assert world.driver.calls == []


@dataclass
class NotingWorkers(WillingWorkers):
    """Workers that keep the headers of their activations."""

    headers: list[Mapping[str, str]] = field(default_factory=list)

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        self.headers.append(headers)


def test_an_activation_is_in_the_trace_of_the_request_that_it_answers(world: World) -> None:
    world.profile("bound", activation_path="/configure", warm_target=0)
    noting = NotingWorkers()
    world.deps = replace(world.deps, worker_api=noting)
    world.warm(2, "bound")
    for trace in (TRACE, ""):
        asked = Acquire.parse({"org": "acme", "profile": "bound", "wait_s": 30}, task_id=f"task-{trace}")
        reply = ReplyTo(task_id=asked.request_id, origin="shop:1@here", traceparent=trace)
        assert isinstance(claiming.acquire(world.deps, asked, reply), Pending)
        world.settle()
    traced, untraced = noting.headers
    assert traced["traceparent"] == TRACE
    assert traced["X-Warmpool-Claim"]
    assert "traceparent" not in untraced
