"""The pure parts of the board: places of workers, updates for browsers, the last hour, logins."""

from __future__ import annotations

import base64
import json
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from pool.core.errors import PoolError
from pool.core.settings import Profile
from pool.core.states import State
from pool.ops.board.drawing import areas
from pool.ops.board.fleet import GHOST_TICKS, STATES, FleetPicture
from pool.ops.board.gate import _SCRYPT, Gate
from pool.ops.board.serving import Where
from pool.ops.cli.completion import candidates
from pool.ops.reporting.history import MINUTES, Hour, rewind
from pool.store.operator_queries import Cell, Moves
from tasks.flower.display import redacted
from tasks.lane.replies import Answered


@pytest.fixture(autouse=True)
def cheap_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive the key of sessions at a small part of its cost, which no test here is about."""
    monkeypatch.setitem(_SCRYPT, "n", 2**4)


def cell(name: str, state: str = "idle", *, profile: str = "default", org: str | None = None) -> Cell:
    return Cell(name, profile, state, org, False)


def told(fleet: FleetPicture) -> dict[int, tuple[str, str | None]]:
    """Apply a full update as a browser does."""
    whole, place, found = fleet.whole(), -1, {}
    for i, step in enumerate(whole["steps"]):
        place += step
        org = whole["org"][i]
        found[place] = (STATES[int(whole["states"][i])], fleet.orgs.all[org] if org >= 0 else None)
    return found


def test_a_worker_keeps_its_place_for_life_and_a_new_worker_takes_it_afterwards() -> None:
    fleet = FleetPicture()
    fleet.see([cell("a"), cell("b"), cell("c")], all_of_them=True)
    changed = fleet.see([cell("b", "hot", org="acme")])
    assert (changed.placed, changed.gone) == ({1}, set())
    assert told(fleet) == {0: ("idle", None), 1: ("hot", "acme"), 2: ("idle", None)}
    fleet.see([cell("b", "lost", org="acme")])
    assert told(fleet)[1] == ("lost", "acme")
    gone = [fleet.see([]) for _ in range(GHOST_TICKS)]
    assert [c.gone for c in gone if c] == [{1}]
    assert fleet.at(1) is None
    fleet.see([cell("d", "spawning")])
    assert fleet.at(1) == cell("d", "spawning")
    assert fleet.at(0) == cell("a")


def test_a_worker_missing_from_a_full_read_is_removed() -> None:
    fleet = FleetPicture()
    fleet.see([cell("a"), cell("b")], all_of_them=True)
    fleet.see([cell("b")], all_of_them=True)
    assert told(fleet) == {0: ("retired", None), 1: ("idle", None)}
    fleet.see([cell("z", "lost")])
    assert len(fleet) == 2


def test_orgs_are_found_by_a_part_of_their_name() -> None:
    fleet = FleetPicture()
    fleet.see(
        [cell("a", "hot", org="acme"), cell("b"), cell("c", "hot", org="Bolt"), cell("d", "hot", org="acne")]
    )
    fleet.whole()
    assert [fleet.orgs.all[n] for n in fleet.orgs_like("AC")] == ["acme", "acne"]
    assert [fleet.orgs.all[n] for n in fleet.orgs_like("bolt")] == ["Bolt"]
    assert fleet.orgs_like("z") == []


def test_an_identical_update_changes_nothing() -> None:
    fleet = FleetPicture()
    fleet.see([cell("a"), cell("b", "hot", org="x")])
    assert not fleet.see([cell("a"), cell("b", "hot", org="x")])


def test_a_large_change_is_sent_as_a_full_update_and_a_small_one_is_not() -> None:
    fleet = FleetPicture()
    changed = fleet.see([cell(f"w{i}") for i in range(1000)])
    assert "steps" in fleet.update(changed)
    update = fleet.update(fleet.see([cell("w7", "hot", org="acme")]))
    assert update["set"] == [[7, STATES.index("hot"), 0, 0, 0]]
    assert "steps" not in update


def test_an_update_of_ten_thousand_workers_is_below_two_hundred_kilobytes() -> None:
    fleet = FleetPicture()
    fleet.see([cell(f"w-{i:020d}", org=None) for i in range(10_000)], all_of_them=True)
    changed = fleet.see([cell(f"w-{i:020d}", "hot", org=f"organisation-{i}") for i in range(10_000)])
    assert len(json.dumps(fleet.update(changed), separators=(",", ":"))) < 200_000
    some = fleet.see([cell(f"w-{i:020d}", "hot_idle", org=f"organisation-{i}") for i in range(2_900)])
    assert len(json.dumps(fleet.update(some), separators=(",", ":"))) < 200_000


def test_the_last_hour_is_computed_backwards_from_now() -> None:
    moves = [
        Moves(0, "p", "idle", "hot", 2),
        Moves(2, "p", None, "spawning", 3),
        Moves(1, "p", "spawning", "idle", 3),
    ]
    now = {("p", "idle"): 1, ("p", "hot"): 2}
    samples = rewind(now, moves, minutes=4)
    assert samples == [
        Counter(), Counter(), Counter({("p", "spawning"): 3}), Counter({("p", "idle"): 3}), Counter(now),
    ]  # fmt: skip


def test_an_incomplete_journal_never_gives_negative_counts() -> None:
    moves = [Moves(0, "p", "draining", "retired", 5), Moves(1, "p", "idle", "hot", 9)]
    for sample in rewind({("p", "hot"): 2}, moves, minutes=3)[:-1]:
        assert all(n > 0 for n in sample.values())
        assert ("p", "retired") not in sample


def test_the_last_hour_moves_on_and_drops_older_samples() -> None:
    hour, at = Hour(), datetime(2030, 1, 1, tzinfo=UTC)
    for minute in range(MINUTES + 30):
        hour.see(at + timedelta(minutes=minute), {("p", "idle"): minute})
    assert len(hour.samples) == MINUTES + 1
    assert hour.by_state()[-1]["idle"] == MINUTES + 29
    assert hour.by_state()[0]["idle"] == 29
    hour.see(at + timedelta(minutes=MINUTES + 29, seconds=30), {("p", "idle"): 7})
    assert (len(hour.samples), hour.by_state()[-1]["idle"]) == (MINUTES + 1, 7)


def test_idle_cost_is_by_state_and_excludes_workers_in_use() -> None:
    hour, at = Hour(), datetime(2030, 1, 1, tzinfo=UTC)
    for minute in range(MINUTES + 1):
        hour.see(at + timedelta(minutes=minute), {("p", "idle"): 2, ("p", "hot"): 5, ("other", "idle"): 9})
    cost = hour.idle_cost({"p": Profile(name="p", cpu_millicores=500, memory_mib=2048)})
    assert cost == {"minutes": 60, "vcpu_h": {"idle": 1.0}, "memory_gib_h": {"idle": 4.0}}


def test_areas_stack_to_the_top_and_begin_where_history_begins() -> None:
    chart = areas([{"hot": 1, "idle": 1}, {"hot": 2, "idle": 2}], minutes=60)
    assert chart["top"] == 4
    hot, idle = chart["paths"]
    assert (hot["state"], idle["state"]) == ("hot", "idle")
    assert hot["d"] == "M590.0 90.0L600.0 60.0L600.0 120.0L590.0 120.0Z"
    assert "600.0 0.0" in idle["d"]


class BoardClock:
    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def wait(self, stop: object, seconds: float) -> bool:
        return False


def a_gate(password: str = "sesame") -> tuple[Gate, BoardClock]:
    clock = BoardClock()
    return Gate(password=password, clock=clock, open_to_all=True), clock


def test_a_session_names_its_user_until_it_expires() -> None:
    gate, _ = a_gate()
    cookie = gate.sign_in("alice", "sesame", address="", now_s=1000)
    assert cookie is not None
    user = gate.user(cookie, now_s=1001)
    assert user is not None
    assert (user.name, user.role, user.way) == ("alice", "operator", "board")
    assert gate.user(cookie, now_s=1000 + 13 * 3600) is None
    told, _, signature = cookie.partition(".")
    forged = base64.urlsafe_b64encode(b"9999999999|mallory").decode()
    for wrong in (
        f"{forged}.{signature}",
        told,
        "",
        "é.é",
        f"{told}.{signature[:-1]}0" if signature[-1] != "0" else "x",
    ):
        assert gate.user(wrong, now_s=1001) is None
    assert a_gate("another")[0].user(cookie, now_s=1001) is None
    assert a_gate()[0].user(cookie, now_s=1001) == user, "a restart or another replica ends no session"


def test_invalid_names_and_boards_without_a_password_refuse_every_login() -> None:
    assert a_gate()[0].sign_in("al\nice", "sesame", address="", now_s=0) is None
    assert a_gate()[0].sign_in("alice\n", "sesame", address="", now_s=0) is None
    assert a_gate("")[0].sign_in("alice", "", address="", now_s=0) is None
    assert a_gate("")[0].user(".", now_s=0) is None


def test_a_forms_token_belongs_to_its_session() -> None:
    gate, _ = a_gate()
    assert gate.is_form_token(gate.form_token("one"), "one")
    assert not gate.is_form_token(gate.form_token("one"), "two")
    assert not gate.is_form_token("", "one")
    forged = base64.urlsafe_b64encode(b"9999999999|mallory").decode()
    assert gate.user(f"{forged}.{gate.form_token(forged)}", now_s=0) is None, (
        "what signs forms signs no sessions"
    )


@pytest.mark.parametrize(
    ("where", "safe"),
    [
        (Where(), True),
        (Where(host="::1"), True),
        (Where(host="localhost"), True),
        (Where(host="0.0.0.0"), False),
        (Where(host="board.example"), False),
        (Where(host="0.0.0.0", password="x"), True),
        (Where(host="0.0.0.0", open_to_all=True), True),
    ],
)
def test_a_board_off_loopback_starts_only_with_a_password_or_an_explicit_option(
    where: Where, safe: bool
) -> None:
    if safe:
        where.must_be_safe()
    else:
        with pytest.raises(PoolError, match="visible to everyone who can reach"):
            where.must_be_safe()


def test_flower_never_shows_what_looks_like_a_secret() -> None:
    assert redacted("{'org': 'a', 'token': 'abc123', 'x': 1}") == "{'org': 'a', 'token': '***', 'x': 1}"
    assert redacted('{"Authorization": "xyz"}') == '{"Authorization": "***"}'
    assert redacted("api_key=abc, n=1") == "api_key=***, n=1"
    assert redacted("{'org': 'tokyo'}") == "{'org': 'tokyo'}"


def test_flower_shows_an_answer_as_granted_or_refused_without_its_token() -> None:
    yes = {
        "outcome": "granted",
        "worker_id": "w-1",
        "claim_id": "c-1",
        "epoch": 2,
        "source": "warm",
        "token": "s3cret",
    }
    assert repr(Answered(yes)) == "granted w-1, claim c-1, epoch 2, warm, token ***"
    no = {"outcome": "refused", "reason": "org_cap", "detail": "org a holds 1 of its 1 workers"}
    assert repr(Answered(no)) == "refused org_cap: org a holds 1 of its 1 workers"
    assert Answered(yes).__json__()["token"] == "s3cret"


def test_a_line_is_completed_with_commands_kinds_states_and_options() -> None:
    assert candidates([], "expl") == ["explain"]
    assert candidates(["get"], "") == ["claims", "orgs", "passes", "profiles", "requests", "workers"]
    assert candidates(["get", "workers", "--state"], "h") == ["hot", "hot_idle"]
    assert candidates(["get", "workers"], "--wa") == ["--watch"]
    assert candidates(["profile"], "") == ["list", "set-warm"]
    assert candidates(["drain"], "n") == ["node"]
    assert candidates(["nothing"], "") == []


def test_every_state_has_a_number_of_one_digit() -> None:
    assert len(STATES) <= 10
    assert set(STATES) == set(State)
