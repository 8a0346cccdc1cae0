"""Triggers, generated from the table of moves. They refuse every other move and write the journal,
so that no UPDATE, by hand or in code, can skip either. They also check that a row is consistent:
Postgres plans them once per session, but parses CHECK constraints again for every statement.

The conditions are written out for each state: a transaction prepares only the conditions of the
states that it meets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pool.core.states import BOUND, CLAIMED, MOVES, PODDED, TERMINAL, MoveReason, RequestState, State
from pool.store import idle_cost
from pool.store.sql import PG_NOW

_JOURNAL_COLUMNS = "at, worker_id, from_state, to_state, epoch, org, claim_id, who, reason, detail"
_JOURNALLED = (
    "NEW.state <> OLD.state OR NEW.epoch <> OLD.epoch"
    " OR (NEW.leaving_since IS NULL AND OLD.leaving_since IS NOT NULL)"
    " OR (NEW.leaving_since IS NOT NULL AND OLD.leaving_since IS NULL)"
)


def _among(column: str, values: Iterable[str]) -> str:
    return f"{column} IN ({', '.join(repr(str(v)) for v in sorted(values))})"


def _null(column: str, *, unless: bool) -> str:
    return f"NEW.{column} IS NOT NULL" if unless else f"NEW.{column} IS NULL"


def _only_one(one: str, other: str) -> str:
    """Return the condition that exactly one of two columns is set.

    It uses no operator, because each operator is prepared in every transaction.
    """
    return (
        f"(NEW.{one} IS NULL AND NEW.{other} IS NOT NULL) OR (NEW.{one} IS NOT NULL AND NEW.{other} IS NULL)"
    )


# A promise, and the condition that violates it in this state; empty if it cannot be violated there.
ByState = Mapping[str, Callable[[str], str]]
_ENDED = _among("OLD.state", TERMINAL)
_OPEN = (RequestState.WAITING, RequestState.BINDING)
_HOLDING = (RequestState.BINDING, RequestState.GRANTED)


def _origins(state: str) -> str:
    """Return the condition that the old state may lead to this one."""
    stays = [] if state in TERMINAL else [state]
    return _among("OLD.state", [*(s for s in State if state in MOVES[s]), *stays])


_WORKERS: ByState = {
    "claimed_exactly_with_a_claim": lambda s: _null("claim_id", unless=s not in CLAIMED),
    "bound_worker_has_an_org": lambda s: "NEW.org IS NULL" if s in BOUND else "",
    "idle_worker_is_neutral": lambda s: "NEW.org IS NOT NULL" if s == State.IDLE else "",
    "past_its_slot_there_is_a_pod": lambda s: (
        "(NEW.pod_uid IS NULL OR NEW.endpoint IS NULL)" if s in PODDED - {State.DRAINING} else ""
    ),
    "parked_exactly_with_an_end": lambda s: (
        f"({_null('hot_idle_since', unless=s != State.HOT_IDLE)}"
        f" OR {_null('hot_idle_until', unless=s != State.HOT_IDLE)})"
    ),
    "leaver_is_never_parked": lambda s: (
        "NEW.leaving_since IS NOT NULL" if s in {State.IDLE, State.HOT_IDLE} else ""
    ),
}
_MOVED: ByState = {
    "terminal_row_never_comes_back": lambda _: _ENDED,
    "legal_moves_only": lambda s: f"NOT ({_origins(s)})",
}
_REQUESTS: ByState = {
    "decided_exactly_once_answered": lambda s: _null("decided_at", unless=s in _OPEN),
    "grant_names_its_claim": lambda s: "NEW.claim_id IS NULL" if s in _HOLDING else "",
    "refusal_has_a_reason": lambda s: _null("reason", unless=s != RequestState.REFUSED),
}
# The most frequent states first.
_STATES = (State.HOT, State.HOT_IDLE, State.DRAINING, State.IDLE, *State)
_REQUEST_STATES = (RequestState.GRANTED, RequestState.SPENT, RequestState.REFUSED, *RequestState)

# A promise, and the condition that violates it in any state.
_EPOCHS: Mapping[str, str] = {
    "epoch_never_goes_back": "NEW.epoch < OLD.epoch",
    "new_holder_means_new_epoch": "NEW.epoch <= OLD.epoch AND NEW.claim_id IS DISTINCT FROM OLD.claim_id",
    "one_org_for_life": "OLD.org IS NOT NULL AND (NEW.org IS NULL OR NEW.org <> OLD.org)",
}
_IDENTITY: Mapping[str, str] = {
    "one_profile_for_life": "NEW.profile <> OLD.profile OR NEW.image <> OLD.image OR NEW.id <> OLD.id",
    "one_pod_for_life": "OLD.pod_uid IS NOT NULL AND (NEW.pod_uid IS NULL OR NEW.pod_uid <> OLD.pod_uid)",
}
_MARKS: Mapping[str, str] = {
    "known_move_reasons_only": " OR ".join(
        f"NOT ({_among(column, MoveReason)})" for column in ("NEW.moved_reason", "NEW.leaving_reason")
    ),
    "marked_exactly_with_a_reason": _only_one("leaving_since", "leaving_reason"),
}
_SLOT: Mapping[str, str] = {
    "known_states_only": f"NOT ({_among('NEW.state', State)})",
    "every_worker_begins_as_a_slot": f"NEW.state <> '{State.SPAWNING}'",
    "epoch_not_negative": "NEW.epoch < 0",
}
_CLAIMS: Mapping[str, str] = {
    "ended_claim_stays_ended": "OLD.ended_at IS NOT NULL",
    "ended_exactly_with_a_cause": _only_one("ended_at", "ended_why"),
    "lease_starts_when_hot": _only_one("hot_at", "lease_expires_at"),
}

REFUSED_BY_TRIGGER = (
    *_SLOT,
    *_MARKS,
    *_MOVED,
    *_EPOCHS,
    *_IDENTITY,
    *_WORKERS,
    "live_row_is_never_deleted",
    *_CLAIMS,
    "known_request_states_only",
    *_REQUESTS,
)


def _raise(name: str, about: str) -> str:
    return (
        "RAISE EXCEPTION USING ERRCODE = 'check_violation',"
        f" CONSTRAINT = '{name}', MESSAGE = '{name}: ' || {about};"
    )


def _named(breaches: Mapping[str, str], about: str) -> str:
    """Return statements that raise the name of the first violated promise."""
    return "\n".join(
        f"    IF {condition} THEN {_raise(name, about)} END IF;" for name, condition in breaches.items()
    )


def _refusing(breaches: Mapping[str, str], about: str) -> str:
    """Return one condition for all promises, and below it the statements that name the first
    violated one.
    """
    whole = " OR ".join(f"({condition})" for condition in breaches.values())
    return f"  IF {whole} THEN\n{_named(breaches, about)}\n  END IF;"


def _of(promises: ByState, state: str) -> dict[str, str]:
    """Return the conditions that violate these promises in this state."""
    return {name: found for name, breach in promises.items() if (found := breach(state))}


def _in_any_state(promises: ByState, states: Sequence[str]) -> dict[str, str]:
    """Return the same promises as conditions for a row of any state."""
    found: dict[str, str] = {}
    for name, breach in promises.items():
        among: dict[str, list[str]] = defaultdict(list)
        for state in dict.fromkeys(states):
            if condition := breach(state):
                among[condition].append(state)
        found[name] = " OR ".join(
            condition if len(of) == len(set(states)) else f"({_among('NEW.state', of)} AND {condition})"
            for condition, of in among.items()
        )
    return found


def _broken(promises: ByState, states: Sequence[str]) -> str:
    """Return statements that set `broken` if a row violates a promise of its state.

    An unknown state violates one.
    """
    lines = []
    for number, state in enumerate(dict.fromkeys(states)):
        conditions = _of(promises, state).values()
        lines += [
            f"  {'ELSIF' if number else 'IF'} NEW.state = '{state}' THEN",
            f"    broken := {' OR '.join(conditions)};",
        ]
    return "\n".join([*lines, "  ELSE", "    broken := true;", "  END IF;"])


def _function(name: str, body: str, declare: str = "") -> str:
    return f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ {declare}BEGIN\n{body}\nEND $$"


def _trigger(name: str, event: str, table: str) -> str:
    return f"CREATE TRIGGER {name} {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"


def _journal(at: str, before: str) -> str:
    values = (
        f"NEW.id, {before}, NEW.state, NEW.epoch, NEW.org, NEW.claim_id,"
        " NEW.moved_by, NEW.moved_reason, NEW.moved_detail"
    )
    return f"INSERT INTO journal ({_JOURNAL_COLUMNS}) VALUES ({at}, {values});"


def statements() -> list[str]:
    """Return the triggers and their functions, in the order of their creation."""
    move = "format('worker %s, %s -> %s', OLD.id, OLD.state, NEW.state)"
    row = "format('worker %s, %s', NEW.id, NEW.state)"
    reason = "format('worker %s, %s, %s', NEW.id, NEW.moved_reason, NEW.leaving_reason)"
    known = {"known_states_only": _SLOT["known_states_only"]}
    slot = {**_SLOT, **_MARKS, **_of(_WORKERS, State.SPAWNING)}
    worker = f"""{_broken({"legal_moves_only": _MOVED["legal_moves_only"], **_WORKERS}, _STATES)}
  IF broken OR {" OR ".join(f"({c})" for c in (*_EPOCHS.values(), *_MARKS.values()))} THEN
{_named(known, row)}
{_named({**_in_any_state(_MOVED, _STATES), **_EPOCHS}, move)}
{_named(_in_any_state(_WORKERS, _STATES), row)}
{_named(_MARKS, reason)}
  END IF;
{idle_cost.SPENDING}
  IF {_JOURNALLED} THEN
    -- A move is as old as the row says; by what else changes the row does not tell.
    IF NEW.state_since <> OLD.state_since THEN
      at := NEW.state_since;
    ELSE
      at := {PG_NOW};
    END IF;
    {_journal("at", "OLD.state")}
  END IF;
{idle_cost.SETTLING}
  RETURN NEW;"""
    requests = {"known_request_states_only": f"NOT ({_among('NEW.state', RequestState)})"}
    request = f"""{_broken(_REQUESTS, _REQUEST_STATES)}
  IF broken THEN
{_named(requests | _in_any_state(_REQUESTS, _REQUEST_STATES), "NEW.pk")}
  END IF;
  RETURN NEW;"""
    never = {"live_row_is_never_deleted": f"NOT ({_ENDED})"}
    return [
        _function("workers_made", f"{_refusing(slot, row)}\n  {_journal(PG_NOW, 'NULL')}\n  RETURN NEW;"),
        _trigger("workers_made", "BEFORE INSERT", "workers"),
        _function("workers_guard", worker, "DECLARE broken boolean; at timestamptz; "),
        _trigger("workers_guard", "BEFORE UPDATE", "workers"),
        _function("workers_fixed", f"{_refusing(_IDENTITY, move)}\n  RETURN NEW;"),
        _trigger("workers_fixed", "BEFORE UPDATE OF id, profile, image, pod_uid", "workers"),
        _function("workers_delete", f"{_refusing(never, 'OLD.id')}\n  RETURN OLD;"),
        _trigger("workers_delete", "BEFORE DELETE", "workers"),
        _function("claims_guard", f"{_refusing(_CLAIMS, 'NEW.id')}\n  RETURN NEW;"),
        _trigger("claims_guard", "BEFORE INSERT OR UPDATE", "claims"),
        _function("requests_guard", request, "DECLARE broken boolean; "),
        # Only the columns that its conditions read: marking an answer as delivered does not run the
        # trigger.
        _trigger(
            "requests_guard", "BEFORE INSERT OR UPDATE OF state, decided_at, claim_id, reason", "requests"
        ),
    ]
