"""A small version of the race of `make race`, and tests of its checker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bench.race import Race, RaceHold, violations
from pool.core.ids import WorkerId
from pool.core.states import MoveReason, State
from pool.store.journal import Entry

NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


def test_racing_clients_never_hold_one_worker_at_the_same_time(tmp_path: Path) -> None:
    verdict = Race(acquires=60, clients=4, workers=6).run(tmp_path)
    assert verdict.violations == []
    assert len(verdict.logs.holds) == 60


def entry(
    number: int, to: State, claim_id: str | None, epoch: int, *, worker: str = "w-1", org: str = "acme"
) -> Entry:
    return Entry(
        id=number, at=NOON + timedelta(seconds=number), worker_id=WorkerId(worker), from_state=None,
        to_state=to,
        epoch=epoch, org=org if epoch else None, claim_id=claim_id, who="test", reason=MoveReason.CLAIMED,
        detail="",
    )  # fmt: skip


def hold(claim_id: str, epoch: int, begun: float, ended: float, *, worker: str = "w-1") -> RaceHold:
    return RaceHold(
        claim_id=claim_id, worker_id=worker, epoch=epoch, org="acme", source="warm", asked=begun, begun=begun,
        ended=ended, outcome="released",
    )  # fmt: skip


CLEAN = [
    entry(1, State.IDLE, None, 0),
    entry(2, State.HOT, "c-1", 1),
    entry(3, State.HOT_IDLE, None, 2),
    entry(4, State.HOT, "c-2", 3),
    entry(5, State.DRAINING, None, 4),
]
HOLDS = [hold("c-1", 1, 2.0, 3.0), hold("c-2", 3, 4.0, 5.0)]


def test_the_race_checker_finds_nothing_in_a_clean_race() -> None:
    assert violations(CLEAN, HOLDS) == []


@pytest.mark.parametrize(
    ("entries", "holds", "said"),
    [
        # No release between two holders.
        ([*CLEAN[:2], entry(3, State.HOT, "c-2", 2)], [], "gives it to c-2 while c-1 holds it"),
        # A holder that came without a new epoch.
        ([*CLEAN[:3], entry(4, State.HOT, "c-2", 2)], [], "gives it to c-2 at epoch 2, after 2"),
        # One claim, two workers.
        ([*CLEAN, entry(6, State.HOT, "c-1", 1, worker="w-2")], [], "puts it on w-2, it was on w-1"),
        # The journal is clean, but two clients held it at the same time.
        (CLEAN, [HOLDS[0], replace(HOLDS[1], begun=2.9)], "was held by c-1 and c-2 at once"),
        # A short hold before does not hide the long one.
        (
            [*CLEAN[:4], entry(5, State.HOT_IDLE, None, 4), entry(6, State.HOT, "c-3", 5)],
            [replace(HOLDS[0], ended=9.0), HOLDS[1], hold("c-3", 5, 6.0, 7.0)],
            "was held by c-1 and c-3 at once",
        ),
        # A client holds a worker without a grant in the journal.
        (CLEAN, [*HOLDS, hold("c-9", 7, 8.0, 9.0)], "c-9 was granted w-1 at epoch 7"),
        (CLEAN, [HOLDS[0], replace(HOLDS[1], epoch=5)], "the journal does not know of it"),
        # One claim, two clients.
        (CLEAN, [*HOLDS, replace(HOLDS[1], begun=6.0, ended=7.0)], "c-2 was granted 2 times"),
        # One worker, two orgs.
        (
            [*CLEAN[:3], entry(4, State.HOT, "c-2", 3, org="globex")],
            [HOLDS[0], replace(HOLDS[1], org="globex")],
            "w-1 served acme, globex",
        ),
    ],
)  # fmt: skip
def test_the_race_checker_finds_every_kind_of_violation(
    entries: list[Entry], holds: list[RaceHold], said: str
) -> None:
    found = violations(entries, holds)
    assert any(said in sentence for sentence in found), found
