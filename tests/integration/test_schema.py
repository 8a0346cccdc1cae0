"""The database is the referee: its schema is the sum of its migrations, every named promise holds
against raw SQL, and only legal moves pass.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DataError, IntegrityError

from pool.core.errors import BrokenPromise, IllegalMove, PoolError
from pool.core.states import CLAIMED, State
from pool.store import Store, connect, ddl, migrations, rules, schema
from pool.store.errors import constraint_of
from pool.store.triggers import REFUSED_BY_TRIGGER
from tests.support.postgres_server import PostgresServer
from tests.unit.test_states import LEGAL

AT = "2030-01-01T00:00:00.000Z"
ENDED = {State.RETIRED, State.LOST}
PATHS = {
    State.SPAWNING: (),
    State.IDLE: ("idle",),
    State.RESERVED: ("reserved",),
    State.ACTIVATING: ("reserved", "activating"),
    State.HOT: ("hot",),
    State.HOT_IDLE: ("hot", "hot_idle"),
    State.DRAINING: ("draining",),
    State.RETIRED: ("draining", "retired"),
    State.LOST: ("lost",),
}

_numbers = itertools.count(1)


def new_slot(tx: Connection, worker_id: str) -> None:
    tx.execute(
        text(
            "INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, created_at,"
            " state_since, moved_by, moved_reason, moved_detail) VALUES (:id, 'default', 'image', 'rev', 1, 1, 1, 'spawning', :at, :at,"
            " 'a', 'demand', 'b')"
        ),
        {"id": worker_id, "at": AT},
    )


def raw_move(tx: Connection, worker_id: str, to: str, *, epochs: int = 1) -> None:
    """Return an UPDATE that gives the row everything its new state needs, so that only the move
    itself can be wrong.
    """
    claim = f"c-{worker_id}" if to in {"reserved", "activating", "hot"} else None
    bound = claim is not None or to == "hot_idle"
    parked = AT if to == "hot_idle" else None
    podded = to not in {"spawning", "draining", "retired", "lost"}
    tx.execute(
        text(
            "UPDATE workers SET state = :to, epoch = epoch + :epochs, claim_id = :claim, hot_idle_since = :parked,"
            " hot_idle_until = :parked, org = COALESCE(org, :org), pod_uid = COALESCE(pod_uid, :pod),"
            " endpoint = COALESCE(endpoint, :pod), moved_by = :who, moved_reason = :reason, moved_detail = :detail WHERE id = :id"
        ),
        {
            "id": worker_id,
            "to": to,
            "epochs": epochs,
            "claim": claim,
            "parked": parked,
            "org": "acme" if bound else None,
            "pod": f"pod-{worker_id}" if podded else None,
            "who": "raw hand",
            "reason": "rollout",
            "detail": f"to {to}",
        },
    )


def a_worker(tx: Connection, worker_id: str, state: State) -> None:
    """A row that has reached this state by legal moves."""
    new_slot(tx, worker_id)
    for step in PATHS[state]:
        raw_move(tx, worker_id, step)


@pytest.fixture(scope="module")
def shared(postgres: PostgresServer, postgres_template: str) -> Iterator[Store]:
    """One database for all tests here: each writes its own rows or rolls back."""
    store = connect(postgres.create_database("schema_shared", template=postgres_template))
    with store.write() as tx:
        _populate(tx)
    yield store
    store.close()


def _populate(tx: Connection) -> None:
    """A worker in each state, a live and an ended claim, a request in each state, an org."""
    for state in State:
        a_worker(tx, f"w-{state}", state)
    claim = (
        "INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, created_at, hot_at,"
        " lease_expires_at, ended_at, ended_why, counted) VALUES (:id, 'w-hot', 'acme', 'default', :id, 1, 'warm', 30,"
        " :at, :at, :at, :ended, :why, false)"
    )
    tx.execute(text(claim), {"id": "c-w-hot", "at": AT, "ended": None, "why": None})
    tx.execute(text(claim), {"id": "c-ended", "at": AT, "ended": AT, "why": "released"})
    request = (
        "INSERT INTO requests (pk, org, request_id, profile, lease_s, wait_s, state, created_at, deadline_at, replies,"
        " decided_at, claim_id, reason) VALUES (:pk, 'acme', :pk, 'default', 30, 0, :state, :at, :at, '[]', :decided,"
        " :claim, :reason)"
    )
    for pk, decided, claim_id, reason in [
        ("waiting", None, None, None),
        ("binding", None, "c-1", None),
        ("granted", AT, "c-1", None),
        ("refused", AT, None, "org_cap"),
        ("spent", AT, "c-1", None),
    ]:
        given = {"pk": pk, "state": pk, "at": AT, "decided": decided, "claim": claim_id, "reason": reason}
        tx.execute(text(request), given)
    tx.execute(
        text(
            'INSERT INTO orgs (id, cap, weight, hot_idle_floor, hot_idle_cap, "values", created_at)'
            " VALUES ('acme', 0, 1, 0, 0, '{}', :at)"
        ),
        {"at": AT},
    )


_SLOT = (
    "INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, epoch, created_at,"
    " state_since, moved_by, moved_reason) VALUES ('w-new', 'default', 'image', 'rev', 1, 1, 1, '{state}', {epoch}, '{at}', '{at}',"
    " 'a', 'demand')"
)
_CLAIM_HOT = (
    "INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, created_at, counted)"
    f" VALUES ('c-2', 'w-hot', 'acme', 'default', 'r', 1, 'warm', 30, '{AT}', false)"
)
_SAME_REQUEST = (
    "INSERT INTO requests (pk, org, request_id, profile, lease_s, wait_s, state, created_at, deadline_at, replies)"
    f" VALUES ('r-2', 'acme', 'waiting', 'default', 30, 0, 'waiting', '{AT}', '{AT}', '[]')"
)
# promise: statements, each of which breaks it and nothing else. Several parts separated by ";;"
# prepare the last one.
BREACHES: dict[str, list[str]] = {
    "one_clock": ["INSERT INTO clock (id, shift_s) VALUES (2, 0)", "UPDATE clock SET id = 2"],
    "one_pool": ["UPDATE pool SET id = 2"],
    "pool_counter_not_negative": ["UPDATE pool SET live = -1"],
    "org_counters_not_negative": ["UPDATE orgs SET in_use = -1", "UPDATE orgs SET parked = -1"],
    "org_limits_sane": [
        "UPDATE orgs SET cap = -1",
        "UPDATE orgs SET hot_idle_floor = -1",
        "UPDATE orgs SET hot_idle_cap = -1",
        "UPDATE orgs SET weight = 0",
    ],
    "target_not_negative": [
        f"INSERT INTO targets (profile, warm_target, set_by, set_at) VALUES ('p', -1, 'a', '{AT}')"
    ],
    # The triggers check the same; these constraints hold if the triggers are disabled.
    "known_states_only": [_SLOT.format(state="asleep", epoch=0, at=AT)],
    "known_move_reasons_only": [
        _SLOT.format(state="spawning", epoch=0, at=AT).replace("'demand'", "'because'"),
        "UPDATE workers SET moved_reason = 'node drained' WHERE id = 'w-hot'",
        f"UPDATE workers SET leaving_since = '{AT}', leaving_reason = 'node drained' WHERE id = 'w-hot'",
    ],
    "marked_exactly_with_a_reason": [
        f"UPDATE workers SET leaving_since = '{AT}' WHERE id = 'w-hot'",
        "UPDATE workers SET leaving_reason = 'disrupted' WHERE id = 'w-hot'",
    ],
    "claimed_exactly_with_a_claim": [
        "UPDATE workers SET claim_id = 'c-x', epoch = epoch + 1 WHERE id = 'w-idle'",
        "UPDATE workers SET claim_id = 'c-x', epoch = epoch + 1 WHERE id = 'w-draining'",
        "UPDATE workers SET claim_id = NULL, epoch = epoch + 1 WHERE id = 'w-hot'",
    ],
    "bound_worker_has_an_org": ["UPDATE workers SET state = 'hot', claim_id = 'c-x', epoch = epoch + 1 WHERE id = 'w-idle'"],
    "idle_worker_is_neutral": ["UPDATE workers SET org = 'acme' WHERE id = 'w-idle'"],
    "past_its_slot_there_is_a_pod": [
        "UPDATE workers SET state = 'idle' WHERE id = 'w-spawning'",
        "UPDATE workers SET state = 'idle', pod_uid = 'u' WHERE id = 'w-spawning'",
        "UPDATE workers SET endpoint = NULL WHERE id = 'w-hot'",
    ],
    "parked_exactly_with_an_end": [
        "UPDATE workers SET hot_idle_until = NULL WHERE id = 'w-hot_idle'",
        "UPDATE workers SET hot_idle_since = NULL WHERE id = 'w-hot_idle'",
        f"UPDATE workers SET hot_idle_until = '{AT}' WHERE id = 'w-hot'",
        f"UPDATE workers SET hot_idle_since = '{AT}' WHERE id = 'w-idle'",
    ],
    "leaver_is_never_parked": [
        f"UPDATE workers SET leaving_since = '{AT}', leaving_reason = 'drained' WHERE id = 'w-idle'",
        f"UPDATE workers SET leaving_since = '{AT}', leaving_reason = 'drained' WHERE id = 'w-hot_idle'",
    ],
    "epoch_not_negative": [_SLOT.format(state="spawning", epoch=-1, at=AT)],
    "one_live_worker_a_claim": [
        "UPDATE workers SET state = 'hot', org = 'acme', claim_id = 'c-w-hot', epoch = epoch + 1 WHERE id = 'w-idle'"
    ],
    "one_live_claim_a_worker": [_CLAIM_HOT],
    "ended_exactly_with_a_cause": [
        f"UPDATE claims SET ended_at = '{AT}' WHERE id = 'c-w-hot'",
        "UPDATE claims SET ended_why = 'released' WHERE id = 'c-w-hot'",
    ],
    "lease_starts_when_hot": [
        "UPDATE claims SET lease_expires_at = NULL WHERE id = 'c-w-hot'",
        "UPDATE claims SET hot_at = NULL WHERE id = 'c-w-hot'",
    ],
    "one_request_per_org_and_id": [_SAME_REQUEST],
    "known_request_states_only": ["UPDATE requests SET state = 'asleep' WHERE pk = 'spent'"],
    "decided_exactly_once_answered": [
        f"UPDATE requests SET decided_at = '{AT}' WHERE pk = 'waiting'",
        f"UPDATE requests SET decided_at = '{AT}' WHERE pk = 'binding'",
        "UPDATE requests SET decided_at = NULL WHERE pk = 'granted'",
    ],
    "grant_names_its_claim": [
        "UPDATE requests SET claim_id = NULL WHERE pk = 'granted'",
        "UPDATE requests SET claim_id = NULL WHERE pk = 'binding'",
    ],
    "refusal_has_a_reason": [
        "UPDATE requests SET reason = NULL WHERE pk = 'refused'",
        "UPDATE requests SET reason = 'org_cap' WHERE pk = 'waiting'",
    ],
    "terminal_row_never_comes_back": [
        "UPDATE workers SET epoch = epoch + 1 WHERE id = 'w-retired'",
        "UPDATE workers SET node = 'n' WHERE id = 'w-lost'",
    ],
    "legal_moves_only": ["UPDATE workers SET state = 'spawning' WHERE id = 'w-idle'"],
    "epoch_never_goes_back": ["UPDATE workers SET epoch = epoch - 1 WHERE id = 'w-hot'"],
    "one_org_for_life": [
        "UPDATE workers SET org = 'bolt' WHERE id = 'w-hot_idle'",
        "UPDATE workers SET org = NULL, state = 'lost', claim_id = NULL, epoch = epoch + 1 WHERE id = 'w-hot'",
    ],
    "one_profile_for_life": [
        "UPDATE workers SET profile = 'big' WHERE id = 'w-idle'",
        "UPDATE workers SET image = 'other' WHERE id = 'w-idle'",
        "UPDATE workers SET id = 'w-other' WHERE id = 'w-idle'",
    ],
    "new_holder_means_new_epoch": [
        "UPDATE workers SET claim_id = 'c-other' WHERE id = 'w-hot'",
        "UPDATE workers SET claim_id = NULL, state = 'draining' WHERE id = 'w-hot'",
    ],
    "one_pod_for_life": [
        "UPDATE workers SET pod_uid = 'other' WHERE id = 'w-hot'",
        "UPDATE workers SET pod_uid = NULL WHERE id = 'w-idle'",
    ],
    "every_worker_begins_as_a_slot": [_SLOT.format(state="draining", epoch=0, at=AT)],
    "live_row_is_never_deleted": [
        f"DELETE FROM workers WHERE id = 'w-{s}'" for s in State if s not in ENDED
    ],
    "ended_claim_stays_ended": [
        "UPDATE claims SET ended_at = NULL, ended_why = NULL WHERE id = 'c-ended'",
        "UPDATE claims SET lease_s = 60 WHERE id = 'c-ended'",
    ],
}  # fmt: skip
_TRIGGERS_OFF = "ALTER TABLE workers DISABLE TRIGGER USER"


def refusal_of(store: Store, breach: str) -> str | None:
    """Return the name under which the database refuses this, or None. It is rolled back."""
    with store.engine.connect() as tx:
        *before, last = breach.split(";;")
        for statement in before:
            tx.exec_driver_sql(statement.replace("TRIGGERS OFF", _TRIGGERS_OFF))
        try:
            found = tx.exec_driver_sql(last)
        except IntegrityError as exc:
            return constraint_of(exc)
        assert found.rowcount > 0, "the statement touched nothing, so nothing was tried"
        return None


@pytest.mark.parametrize(
    ("promise", "breach"),
    [pytest.param(name, b, id=name) for name, breaches in BREACHES.items() for b in breaches],
)
def test_a_violation_by_raw_sql_is_refused_under_the_promises_name(
    shared: Store, promise: str, breach: str
) -> None:
    assert refusal_of(shared, breach) == promise


def test_every_promise_of_the_schema_has_a_violation_above() -> None:
    named = {str(c.name) for t in schema.metadata.tables.values() for c in t.constraints if c.name}
    named |= {
        str(c.name) for t in schema.metadata.tables.values() for col in t.columns for c in col.constraints
    }
    unique = {str(i.name) for t in schema.metadata.tables.values() for i in t.indexes if i.unique}
    assert set(BREACHES) == named | unique | set(REFUSED_BY_TRIGGER)


def test_every_check_of_the_database_has_a_name_of_the_schema(shared: Store) -> None:
    """Read from the database itself, so that no promise exists only in the docs."""
    found = _column(shared, "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid > 0")
    behind_indexes_or_triggers = {
        "one_live_worker_a_claim",
        "one_live_claim_a_worker",
        "one_request_per_org_and_id",
    }
    assert set(found) == set(BREACHES) - behind_indexes_or_triggers - set(REFUSED_BY_TRIGGER)


def test_a_violation_reaches_callers_as_a_broken_promise_with_an_explanation(store: Store) -> None:
    with store.write() as tx:
        a_worker(tx, "w-1", State.IDLE)
    with pytest.raises(BrokenPromise, match="idle worker is neutral") as broken, store.write() as tx:
        tx.execute(text("UPDATE workers SET org = 'acme'"))
    assert not isinstance(broken.value, IllegalMove)
    with pytest.raises(IllegalMove, match="legal moves only"), store.write() as tx:
        tx.execute(text("UPDATE workers SET state = 'spawning'"))


# Moves.


def test_raw_sql_makes_exactly_the_drawn_moves(shared: Store) -> None:
    """Every state to every other: legal moves pass, the others are refused by name."""
    tried = {pair: _tried(shared, *pair) for pair in product(State, State) if pair[0] is not pair[1]}
    assert {pair for pair, refusal in tried.items() if refusal is None} == LEGAL
    # Out of a terminal state both promises are broken, and either may be named.
    assert {r for (frm, _), r in tried.items() if frm not in ENDED} == {None, "legal_moves_only"}
    assert {r for (frm, _), r in tried.items() if frm in ENDED} <= {
        "legal_moves_only",
        "terminal_row_never_comes_back",
    }


def _new_epochs(frm: State, to: State) -> tuple[int, ...]:
    """Return how much the epoch of a move may grow: not at all where the holder stays the same."""
    return (3,) if (frm in CLAIMED) != (to in CLAIMED) else (0, 3)


@pytest.mark.parametrize(
    ("frm", "to", "epochs"), [(*move, n) for move in sorted(LEGAL) for n in _new_epochs(*move)], ids=str
)
def test_a_move_is_journalled_once_with_actor_reason_and_epoch(
    shared: Store, frm: State, to: State, epochs: int
) -> None:
    worker_id = f"j-{next(_numbers)}"
    with shared.write() as tx:
        a_worker(tx, worker_id, frm)
        before = _journal(tx, worker_id)
        raw_move(tx, worker_id, to, epochs=epochs)
        (entry,) = _journal(tx, worker_id)[len(before) :]
        row = tx.execute(text("SELECT * FROM workers WHERE id = :id"), {"id": worker_id}).one()
    assert (entry.from_state, entry.to_state) == (frm, to)
    assert (entry.who, entry.reason, entry.detail) == ("raw hand", "rollout", f"to {to}")
    assert (entry.epoch, entry.org, entry.claim_id) == (row.epoch, row.org, row.claim_id)
    assert entry.epoch == len(PATHS[frm]) + epochs


def test_a_slot_is_journalled_when_it_is_created(shared: Store) -> None:
    worker_id = f"j-{next(_numbers)}"
    with shared.write() as tx:
        new_slot(tx, worker_id)
        (entry,) = _journal(tx, worker_id)
    assert (entry.from_state, entry.to_state) == (None, "spawning")
    assert (entry.who, entry.reason, entry.detail) == ("a", "demand", "b")


@pytest.mark.parametrize(
    ("state", "change", "entries"),
    [
        ("hot", "heartbeat_at = created_at", 0),
        ("spawning", "sent_at = created_at", 0),
        ("hot", "epoch = epoch + 1, claim_id = 'c-another'", 1),
        ("hot", "leaving_since = created_at, leaving_reason = 'drained'", 1),
    ],
)
def test_without_a_move_only_a_change_of_holder_or_leaving_is_journalled(
    shared: Store, state: str, change: str, entries: int
) -> None:
    with shared.engine.connect() as tx:
        before = len(_journal(tx, f"w-{state}"))
        tx.exec_driver_sql(f"UPDATE workers SET {change} WHERE id = 'w-{state}'")
        assert len(_journal(tx, f"w-{state}")) - before == entries


def test_a_refused_move_is_not_journalled(store: Store) -> None:
    with store.write() as tx:
        a_worker(tx, "w-1", State.IDLE)
    with pytest.raises(IllegalMove), store.write() as tx:
        raw_move(tx, "w-1", "hot_idle")
    with store.read() as tx:
        assert [e.to_state for e in _journal(tx, "w-1")] == ["spawning", "idle"]


@pytest.mark.parametrize("state", sorted(ENDED), ids=str)
def test_an_ended_row_may_be_deleted(store: Store, state: State) -> None:
    with store.write() as tx:
        a_worker(tx, "w-1", state)
        assert tx.execute(text("DELETE FROM workers")).rowcount == 1


def _tried(store: Store, frm: State, to: State) -> str | None:
    worker_id = f"m-{next(_numbers)}"
    with store.engine.connect() as tx:
        a_worker(tx, worker_id, frm)
        try:
            raw_move(tx, worker_id, to)
        except IntegrityError as exc:
            return constraint_of(exc)
        moved = tx.execute(text("SELECT state FROM workers WHERE id = :id"), {"id": worker_id}).scalar_one()
        assert moved == to
        return None


def _journal(tx: Connection, worker_id: str) -> list[Any]:
    found = tx.execute(text("SELECT * FROM journal WHERE worker_id = :id ORDER BY id"), {"id": worker_id})
    return list(found)


# Migrations.

_CATALOGUE = {
    "columns": "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default"
    " FROM information_schema.columns WHERE table_schema = 'public'",
    "constraints": "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint"
    " WHERE connamespace = 'public'::regnamespace",
    "indexes": "SELECT indrelid::regclass::text, indexrelid::regclass::text, pg_get_indexdef(indexrelid)"
    " FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE c.relnamespace = 'public'::regnamespace",
    "functions": "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "triggers": "SELECT tgname, tgenabled, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
}


def _catalogue(store: Store) -> dict[str, set[tuple[Any, ...]]]:
    """Return the whole schema of a database, without Alembic's own table."""
    with store.read() as tx:
        found = {k: {tuple(r) for r in tx.exec_driver_sql(q)} for k, q in _CATALOGUE.items()}
        found["seed"] = {tuple(tx.exec_driver_sql("SELECT id, shift_s FROM clock").one())}
        found["seed"] |= {tuple(tx.exec_driver_sql("SELECT id, live, paused FROM pool").one())}
    return {
        kind: {row for row in rows if "alembic_version" not in row and "alembic_version_pkc" not in row}
        for kind, rows in found.items()
    }


@pytest.fixture
def empty(postgres: PostgresServer) -> Iterator[Store]:
    """A database with nothing in it."""
    name = f"empty_{next(_numbers)}"
    store = connect(postgres.create_database(name))
    yield store
    store.close()
    postgres.drop_database(name)


def test_the_schema_is_the_sum_of_its_migrations(empty: Store, store: Store) -> None:
    with empty.write() as tx:
        for statement in ddl.statements():
            tx.exec_driver_sql(statement.replace("%", "%%"))
    made, migrated = _catalogue(empty), _catalogue(store)
    assert all(made.values())
    for kind in made:
        assert made[kind] == migrated[kind], kind


def test_upgrading_twice_does_nothing(empty: Store) -> None:
    first = migrations.upgrade(empty)
    before = _catalogue(empty)
    with empty.write() as tx:
        new_slot(tx, "w-1")
    assert migrations.upgrade(empty) == first == migrations.current(empty) == migrations.head()
    assert _catalogue(empty) == before
    assert _column(empty, "SELECT id FROM workers") == ["w-1"]


# Written once, when a version was published: an installation of that version would never run what
# is added to it later.
FROZEN = {
    "v0001_initial": "28fd20ef246c117ed207fe1078eb11e073ee99d85aaae15dd3f59b6ca8466672",
}


@pytest.mark.parametrize("version", FROZEN)
def test_a_published_migration_is_not_changed(version: str) -> None:
    found = hashlib.sha256()
    for path in sorted(Path(migrations.__file__).parent.glob(f"versions/{version}.*")):
        found.update(path.read_bytes())
    assert found.hexdigest() == FROZEN[version], "write a new migration instead"


_NEXT = """from alembic import op

from pool.store.migrations import run_sql

revision = "v0002_next"
down_revision = "v0001_initial"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
"""
_NEXT_SQL = """ALTER TABLE workers ADD COLUMN zone TEXT DEFAULT '100%' NOT NULL
"""


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Publish a second version with the given SQL."""

    def publish(sql: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(Path(migrations.__file__).parent, folder)
        (folder / "versions" / "v0002_next.py").write_text(_NEXT)
        (folder / "versions" / "v0002_next.sql").write_text(sql)
        monkeypatch.setattr(migrations, "_HERE", folder)

    return publish


def test_a_migration_keeps_the_rows_of_the_version_before(
    empty: Store, next_version: Callable[[str], None]
) -> None:
    assert migrations.upgrade(empty) == "v0001_initial"
    with empty.write() as tx:
        for worker_id, path in (("w-busy", ("idle", "hot")), ("w-warm", ("idle",)), ("w-over", ("lost",))):
            new_slot(tx, worker_id)
            for state in path:
                raw_move(tx, worker_id, state)
    told = "SELECT worker_id || ' ' || to_state FROM journal ORDER BY id"
    before = _column(empty, told)
    next_version(_NEXT_SQL)
    with pytest.raises(PoolError, match="is at v0001_initial, this code needs v0002_next"):
        migrations.assert_current(empty)
    assert migrations.upgrade(empty) == migrations.current(empty) == "v0002_next"
    assert _column(empty, "SELECT id || ' ' || state || ' ' || zone FROM workers ORDER BY id") == [
        "w-busy hot 100%", "w-over lost 100%", "w-warm idle 100%",
    ]  # fmt: skip
    assert _column(empty, told) == before
    with empty.write() as tx:
        raw_move(tx, "w-busy", "hot_idle")
        with pytest.raises(IntegrityError), tx.begin_nested():
            raw_move(tx, "w-over", "idle")
    assert _column(empty, told)[-1] == "w-busy hot_idle"


def test_a_failed_migration_leaves_the_version_before(
    empty: Store, next_version: Callable[[str], None]
) -> None:
    migrations.upgrade(empty)
    before = _catalogue(empty)
    next_version(_NEXT_SQL + ";;\nSELECT 1 / 0\n")
    with pytest.raises(DataError):
        migrations.upgrade(empty)
    assert migrations.current(empty) == "v0001_initial"
    assert _catalogue(empty) == before


def test_replicas_that_start_together_all_have_the_schema(empty: Store) -> None:
    """Each with its own store, like processes."""
    together, ended = threading.Barrier(3), []

    def replica() -> None:
        store = connect(empty.engine.url.render_as_string(hide_password=False))
        together.wait(10)
        ended.append(migrations.upgrade(store))
        migrations.assert_current(store)
        store.close()

    threads = [threading.Thread(target=replica) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ended == [migrations.head()] * 3
    assert _column(empty, "SELECT count(*) FROM pool") == [1]


def _rule_schemas(store: Store) -> list[str]:
    return _column(store, "SELECT nspname::text FROM pg_namespace WHERE nspname ~ '^rules_' ORDER BY oid")


@pytest.fixture
def next_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Release rules with one more function, with the given body."""
    released = rules.functions()

    def publish(body: str) -> None:
        added = f"CREATE FUNCTION warmpool_extra() RETURNS text LANGUAGE sql AS $$ {body} $$"
        monkeypatch.setattr(rules, "functions", lambda: (*released, added))
        rules.schema.cache_clear()

    yield publish
    monkeypatch.undo()
    rules.schema.cache_clear()


def test_rules_of_two_releases_coexist_and_older_ones_are_dropped(
    empty: Store, next_rules: Callable[[str], None]
) -> None:
    migrations.upgrade(empty)
    first = rules.schema()
    next_rules("SELECT 'second'")
    with pytest.raises(
        PoolError, match=r"does not have the rules .* \(rules_\w{12}\): run `warmpool migrate`"
    ):
        migrations.assert_current(empty)
    migrations.upgrade(empty)
    second = rules.schema()
    assert _rule_schemas(empty) == [first, second]
    assert _column(empty, f"SELECT {second}.warmpool_extra()") == ["second"]
    # The release before still serves.
    assert _column(empty, f"SELECT {first}.warmpool_serve('{{}}') ->> 'events'") == ["[]"]
    next_rules("SELECT 'third'")
    migrations.upgrade(empty)
    assert _rule_schemas(empty) == [second, rules.schema()]
    migrations.assert_current(empty)


def test_rules_that_cannot_be_created_leave_the_release_before(
    empty: Store, next_rules: Callable[[str], None]
) -> None:
    migrations.upgrade(empty)
    first = rules.schema()
    next_rules("SELECT no_such_column")
    with pytest.raises(PoolError, match="no_such_column"):
        migrations.upgrade(empty)
    assert _rule_schemas(empty) == [first]


def test_an_empty_database_is_refused_with_an_explanation(empty: Store) -> None:
    with pytest.raises(
        PoolError, match=r"the database schema is at nothing, .* needs v\d{4}\w*.*run `warmpool migrate`"
    ):
        migrations.assert_current(empty)


def _column(store: Store, query: str) -> list[Any]:
    with store.read() as tx:
        return list(tx.exec_driver_sql(query).scalars())
