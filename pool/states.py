"""What a worker can be and where it can go. `MOVES` is the only table of moves; every set of states is derived from it,
and the database triggers are generated from it."""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    SPAWNING = "spawning"
    IDLE = "idle"
    RESERVED = "reserved"
    ACTIVATING = "activating"
    HOT = "hot"
    HOT_IDLE = "hot_idle"
    DRAINING = "draining"
    RETIRED = "retired"
    LOST = "lost"


S = State

MOVES: dict[State, frozenset[State]] = {
    S.SPAWNING: frozenset({S.IDLE, S.RESERVED, S.HOT, S.DRAINING, S.LOST}),
    S.IDLE: frozenset({S.RESERVED, S.HOT, S.DRAINING, S.LOST}),
    S.RESERVED: frozenset({S.ACTIVATING, S.DRAINING, S.LOST}),
    S.ACTIVATING: frozenset({S.HOT, S.DRAINING, S.LOST}),
    S.HOT: frozenset({S.HOT_IDLE, S.DRAINING, S.LOST}),
    S.HOT_IDLE: frozenset({S.HOT, S.DRAINING, S.LOST}),
    S.DRAINING: frozenset({S.RETIRED}),
    S.RETIRED: frozenset(),
    S.LOST: frozenset(),
}

PAIRS: tuple[tuple[State, State], ...] = tuple((a, b) for a in State for b in sorted(MOVES[a]))


def leading_to(*targets: State) -> frozenset[State]:
    """The states from which all `targets` can be reached in one move."""
    return frozenset(s for s in State if MOVES[s].issuperset(targets))


TERMINAL = frozenset(s for s in State if not MOVES[s])
# Live: counts toward the pool's cap, from the slot until its delete was accepted.
LIVE = frozenset(State) - TERMINAL
# Only deletion is left.
LEAVING = frozenset(s for s in LIVE if MOVES[s] <= TERMINAL)
# The three states that a claim holds: what `hot` is made of, plus `hot` itself.
ENTRY = frozenset({S.SPAWNING, S.IDLE, S.HOT_IDLE})
CLAIMED = LIVE - LEAVING - ENTRY
# Ready and unclaimed: what an acquire may be given.
CLAIMABLE = ENTRY - {S.SPAWNING}
# Bound to one org for the rest of its life.
BOUND = CLAIMED | {S.HOT_IDLE}
# Where a pod is expected to exist: everything live but the slot whose pod may not have been made yet.
PODDED = LIVE - {S.SPAWNING}
DRAINABLE = leading_to(S.DRAINING)
LOSABLE = leading_to(S.LOST)


class Outcome(StrEnum):
    """What became of a fenced write."""

    MOVED = "moved"
    FENCED = "fenced"
    GONE = "gone"


class Condition(StrEnum):
    """How a holder gives a worker back."""

    CLEAN = "clean"
    TAINTED = "tainted"


class Reason(StrEnum):
    """Why an acquire was refused."""

    ORG_CAP = "org_cap"
    POOL_CAP = "pool_cap"
    NO_WARM_WORKER = "no_warm_worker"
    WAIT_TIMEOUT = "wait_timeout"
    CANCELLED = "cancelled"
    UNKNOWN_PROFILE = "unknown_profile"
    UNKNOWN_ORG = "unknown_org"
    PAUSED = "paused"
    ACTIVATION_FAILED = "activation_failed"
    REQUEST_SPENT = "request_spent"
    INVALID = "invalid"


class RequestState(StrEnum):
    """Where a request stands. `waiting` and `binding` are open; the others have an answer."""

    WAITING = "waiting"
    BINDING = "binding"
    GRANTED = "granted"
    REFUSED = "refused"
    SPENT = "spent"


class ClaimEnd(StrEnum):
    """Why a claim ended."""

    RELEASED = "released"
    TAINTED = "tainted"
    EXPIRED = "expired"
    ABANDONED = "abandoned"
    ACTIVATION_FAILED = "activation_failed"
    WORKER_LOST = "worker_lost"
    RETIRED = "retired"


class Source(StrEnum):
    """Where a granted worker came from."""

    HOT_IDLE = "hot_idle"
    WARM = "warm"
