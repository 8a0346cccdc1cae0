"""Triggers, generated from the table of moves: they refuse every other move and append the journal, so that neither can
be forgotten by whoever writes an UPDATE, by hand or in code."""

from __future__ import annotations

from pool.states import PAIRS, TERMINAL, State
from pool.store import costing
from pool.store.sql import PG_NOW, SQLITE_NOW

_PAIRS = ", ".join(f"'{a}>{b}'" for a, b in PAIRS)
_TERMINAL = ", ".join(f"'{s}'" for s in sorted(TERMINAL))
_JOURNAL_COLUMNS = "at, worker_id, from_state, to_state, epoch, org, claim_id, who, why"

# name, condition that breaks the promise (on UPDATE of workers)
_REFUSALS: tuple[tuple[str, str], ...] = (
    ("terminal_row_never_comes_back", f"OLD.state IN ({_TERMINAL})"),
    ("legal_moves_only", f"NEW.state <> OLD.state AND OLD.state || '>' || NEW.state NOT IN ({_PAIRS})"),
    ("epoch_never_goes_back", "NEW.epoch < OLD.epoch"),
    (
        "new_holder_means_new_epoch",
        "COALESCE(NEW.claim_id, '') <> COALESCE(OLD.claim_id, '') AND NEW.epoch <= OLD.epoch",
    ),
    ("one_org_for_life", "OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org)"),
    ("one_profile_for_life", "NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id"),
    ("one_pod_for_life", "OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid)"),
)
_JOURNALLED = "NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch OR (NEW.leaving_since IS NULL) <> (OLD.leaving_since IS NULL)"

REFUSED_BY_TRIGGER = (
    *(name for name, _ in _REFUSALS),
    "every_worker_begins_as_a_slot",
    "live_row_is_never_deleted",
    "ended_claim_stays_ended",
)


def postgres() -> list[str]:
    """The statements for Postgres."""
    checks = "\n".join(
        f"  IF {condition} THEN RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = '{name}', "
        f"MESSAGE = format('{name}: worker %s, %s -> %s', OLD.id, OLD.state, NEW.state); END IF;"
        for name, condition in _REFUSALS
    )

    def refusing(name: str) -> str:
        return f"RAISE EXCEPTION USING ERRCODE = 'check_violation', CONSTRAINT = '{name}', MESSAGE = '{name}'"

    def trigger(name: str, event: str, when: str = "", table: str = "workers", function: str = "") -> str:
        condition = f"WHEN ({when}) " if when else ""
        return f"CREATE TRIGGER {name} {event} ON {table} FOR EACH ROW {condition}EXECUTE FUNCTION {function or name}()"

    values = "NEW.id, {0}, NEW.state, NEW.epoch, NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why"
    return [
        f"CREATE FUNCTION workers_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN\n{checks}\n{costing.POSTGRES_SPENDING}\n  RETURN NEW; END $$",
        trigger("workers_guard", "BEFORE UPDATE"),
        f"""CREATE FUNCTION workers_journal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO journal ({_JOURNAL_COLUMNS}) VALUES ({PG_NOW}, {values.format("NULL")});
  ELSE
    INSERT INTO journal ({_JOURNAL_COLUMNS}) VALUES ({PG_NOW}, {values.format("OLD.state")});
  END IF;
  RETURN NULL; END $$""",
        trigger("workers_journal_insert", "AFTER INSERT", function="workers_journal"),
        trigger("workers_journal_update", "AFTER UPDATE", _JOURNALLED, function="workers_journal"),
        costing.POSTGRES_SETTLING,
        trigger("workers_settle", "AFTER UPDATE", costing.ENDS, function="workers_settle"),
        f"""CREATE FUNCTION workers_begin() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  {refusing("every_worker_begins_as_a_slot")}; END $$""",
        trigger("workers_begin", "BEFORE INSERT", f"NEW.state <> '{State.SPAWNING}'"),
        f"""CREATE FUNCTION workers_delete() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  {refusing("live_row_is_never_deleted")}; END $$""",
        trigger("workers_delete", "BEFORE DELETE", f"OLD.state NOT IN ({_TERMINAL})"),
        f"""CREATE FUNCTION claims_guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  {refusing("ended_claim_stays_ended")}; END $$""",
        trigger("claims_guard", "BEFORE UPDATE", "OLD.ended_at IS NOT NULL", table="claims"),
    ]


def sqlite() -> list[str]:
    """The statements for SQLite."""

    def refusing(name: str, event: str, table: str, condition: str) -> str:
        return (
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} WHEN {condition} "
            f"BEGIN SELECT RAISE(ABORT, '{name}'); END"
        )

    def journalling(name: str, event: str, when: str, before: str) -> str:
        return (
            f"CREATE TRIGGER {name} AFTER {event} ON workers {when}BEGIN "
            f"INSERT INTO journal ({_JOURNAL_COLUMNS}) VALUES ({SQLITE_NOW}, NEW.id, {before}, NEW.state, NEW.epoch, "
            "NEW.org, NEW.claim_id, NEW.moved_by, NEW.moved_why); END"
        )

    return [
        *(refusing(name, "UPDATE", "workers", condition) for name, condition in _REFUSALS),
        refusing("every_worker_begins_as_a_slot", "INSERT", "workers", f"NEW.state <> '{State.SPAWNING}'"),
        refusing("live_row_is_never_deleted", "DELETE", "workers", f"OLD.state NOT IN ({_TERMINAL})"),
        refusing("ended_claim_stays_ended", "UPDATE", "claims", "OLD.ended_at IS NOT NULL"),
        journalling("workers_journal_insert", "INSERT", "", "NULL"),
        journalling("workers_journal_update", "UPDATE", f"WHEN {_JOURNALLED} ", "OLD.state"),
        costing.SQLITE_SPENDING,
    ]
