"""The checker of the chaos run: it finds each violation, accepts what is allowed, and a seed gives
one schedule.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pool.core.ids import WorkerId
from pool.core.states import MoveReason, State
from pool.store.journal import Entry
from tests.chaos import checker, history
from tests.chaos.checker import ClaimRow, History, RequestRow
from tests.chaos.history import ClaimHold, HistoryEvent, HistoryKind
from tests.chaos.running import Chaos
from tests.chaos.servers import SingleServers

CLAIM = ClaimRow(claim="c-1", worker="w-1", org="acme", epoch=1, ended_why="released")
REQUEST = RequestRow(org="acme", request="r-1", state="granted", claim="c-1")
ENTRY = Entry(
    id=1, at=datetime(2026, 1, 1, tzinfo=UTC), worker_id=WorkerId("w-1"), from_state=State.IDLE,
    to_state=State.HOT,
    epoch=1, org="acme", claim_id="c-1", who="test", reason=MoveReason.CLAIMED, detail="",
)  # fmt: skip
LIFE = [
    HistoryEvent(t=1, what=HistoryKind.ASKED, request="r-1", org="acme"),
    HistoryEvent(
        t=2, what=HistoryKind.GRANTED, request="r-1", org="acme", claim="c-1", worker="w-1", epoch=1
    ),
    HistoryEvent(t=3, what=HistoryKind.USED, request="r-1", org="acme", claim="c-1", worker="w-1", epoch=1),
    HistoryEvent(
        t=4, what=HistoryKind.RELEASING, request="r-1", org="acme", claim="c-1", worker="w-1", epoch=1
    ),
    HistoryEvent(
        t=5,
        what=HistoryKind.RELEASED,
        request="r-1",
        org="acme",
        claim="c-1",
        worker="w-1",
        epoch=1,
        about="released",
    ),
]


def a_history(events: list[HistoryEvent] | None = None, **changes: object) -> History:
    clients = [LIFE if events is None else events]
    given = {
        "clients": clients, "holds": history.holds(clients), "entries": [ENTRY], "claims": {"c-1": CLAIM},
        "requests": {("acme", "r-1"): REQUEST}, **changes,
    }  # fmt: skip
    return History(**given)  # type: ignore[arg-type]


def a_hold(begun: float, ended: float, claim: str, org: str = "acme") -> ClaimHold:
    return ClaimHold(claim=claim, worker="w-1", epoch=1, org=org, request="r", begun=begun, ended=ended)


def test_an_ordinary_history_is_no_violation() -> None:
    assert checker.violations(a_history()) == []


def test_two_holders_at_the_same_time_are_found_also_inside_a_longer_hold() -> None:
    held = [a_hold(0, 10, "c-1"), a_hold(1, 2, "c-2"), a_hold(3, 4, "c-3")]
    assert len(checker.shared(held)) == 2
    assert checker.shared([a_hold(0, 1, "c-1"), a_hold(1, 2, "c-2")]) == []


def test_a_worker_of_two_orgs_is_found() -> None:
    assert checker.shared([a_hold(0, 1, "c-1"), a_hold(2, 3, "c-2", org="globex")])


def test_a_claim_that_ended_early_is_found_unless_its_worker_was_killed() -> None:
    lost = [*LIFE[:3], replace(LIFE[2], t=4, what=HistoryKind.LOST, about="lease expired")]
    assert checker.violations(a_history(lost)) == ["c-1 on w-1 was taken from its holder: lease expired"]
    assert checker.violations(a_history(lost, killed={"w-1"})) == []


def test_a_holder_refused_by_its_worker_is_found() -> None:
    away = [*LIFE[:2], replace(LIFE[2], what=HistoryKind.TURNED_AWAY, about="409 epoch")]
    assert "turned its holder" in checker.violations(a_history(away))[0]


def test_a_grant_missing_from_the_journal_is_found() -> None:
    assert "the journal does not know" in checker.violations(a_history(entries=[]))[0]
    assert checker.violations(a_history(entries=[replace(ENTRY, epoch=2)]))


def test_an_acknowledged_release_that_was_not_done_is_found() -> None:
    found = checker.violations(a_history(claims={"c-1": replace(CLAIM, ended_why=None)}))
    assert any("is still live" in sentence for sentence in found)


def test_two_answers_to_one_request_are_found() -> None:
    again = [*LIFE, replace(LIFE[1], t=6, claim="c-2", worker="w-2")]
    assert any("answered 2 times" in s for s in checker.answers(a_history(again)))
    refused = [
        *LIFE,
        HistoryEvent(t=6, what=HistoryKind.REFUSED, request="r-1", org="acme", about="pool_cap"),
    ]
    assert any("answered 2 times" in s for s in checker.answers(a_history(refused)))


def test_an_answer_that_differs_from_the_table_is_found() -> None:
    other = {("acme", "r-1"): replace(REQUEST, claim="c-9")}
    assert any("the table has" in s for s in checker.violations(a_history(requests=other)))


def test_undecided_requests_and_unended_claims_are_found() -> None:
    waiting = {("acme", "r-2"): RequestRow(org="acme", request="r-2", state="waiting", claim=None)}
    assert checker.unanswered(a_history(requests=waiting))
    assert checker.never_ended({"c-1": replace(CLAIM, ended_why=None)})


def test_a_killed_client_counts_as_holder_until_its_last_event(tmp_path: Path) -> None:
    file = tmp_path / "client.jsonl"
    file.write_text("".join(event.line() + "\n" for event in LIFE[:3]) + '{"t": 9, "wh')
    [events] = history.read([file])
    [hold] = history.holds([events])
    assert (hold.begun, hold.ended, hold.uses, hold.releasing) == (2, 3, 1, False)


def test_a_seed_gives_one_schedule_and_each_kind_of_fault_comes_early() -> None:
    steps = Chaos(7, 3).steps()
    assert steps == Chaos(7, 3).steps() != Chaos(8, 3).steps()
    assert {step.kind for step in steps} == SingleServers.kinds


def test_no_target_has_two_faults_at_a_time_and_all_faults_end() -> None:
    for seed in range(50):
        busy: dict[str, float] = {}
        for step in Chaos(seed, 5).steps():
            assert busy.get(step.target, 0) < step.at_s
            busy[step.target] = step.at_s + step.lasts_s
        assert max(busy.values()) <= 5 * 60 + 0.5
