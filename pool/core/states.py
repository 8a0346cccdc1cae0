"""The states of a worker and the moves between them. `MOVES` is the only table of moves: every set
of states is derived from it, and the database triggers are generated from it.
"""

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
    """Return the states from which all `targets` can be reached in one move."""
    return frozenset(s for s in State if MOVES[s].issuperset(targets))


TERMINAL = frozenset(s for s in State if not MOVES[s])
# Live: counts toward the pool's cap, from the slot until the delete is accepted.
LIVE = frozenset(State) - TERMINAL
# Only deletion is left.
LEAVING = frozenset(s for s in LIVE if MOVES[s] <= TERMINAL)
# CLAIMED: the states with a live claim. ENTRY: the unclaimed states from which a claim can begin.
ENTRY = frozenset({S.SPAWNING, S.IDLE, S.HOT_IDLE})
CLAIMED = LIVE - LEAVING - ENTRY
# Ready and unclaimed: an acquire may get such a worker.
CLAIMABLE = ENTRY - {S.SPAWNING}
# Bound to one org for the rest of its life.
BOUND = CLAIMED | {S.HOT_IDLE}
# A pod must exist: all live states except `spawning`, whose pod may not exist yet.
PODDED = LIVE - {S.SPAWNING}
DRAINABLE = leading_to(S.DRAINING)
LOSABLE = leading_to(S.LOST)


class Outcome(StrEnum):
    """The result of a fenced write."""

    MOVED = "moved"
    FENCED = "fenced"
    GONE = "gone"


class Condition(StrEnum):
    """The condition in which a holder releases a worker."""

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
    """The state of a request. `waiting` and `binding` are open; the others have an answer."""

    WAITING = "waiting"
    BINDING = "binding"
    GRANTED = "granted"
    REFUSED = "refused"
    SPENT = "spent"


# Requests that nothing can happen to any more, but for an acquire that repeats a refused one.
OVER = frozenset({RequestState.SPENT, RequestState.REFUSED})


class ClaimEnd(StrEnum):
    """Why a claim ended."""

    RELEASED = "released"
    TAINTED = "tainted"
    EXPIRED = "expired"
    ABANDONED = "abandoned"
    ACTIVATION_FAILED = "activation_failed"
    WORKER_LOST = "worker_lost"
    RETIRED = "retired"


class MoveReason(StrEnum):
    """Why a worker moved, or must leave. The journal also stores a detail for people; metrics and
    reports use only this.
    """

    # A worker becomes ready and gets a claim.
    DEMAND = "demand"
    READY = "ready"
    CLAIMED = "claimed"
    ACTIVATING = "activating"
    ACTIVATED = "activated"
    # Its claim ends.
    RELEASED = "released"
    TAINTED = "tainted"
    ABANDONED = "abandoned"
    LEASE_EXPIRED = "lease_expired"
    ACTIVATION_FAILED = "activation_failed"
    # An operator takes it out of use.
    DRAINED = "drained"
    RETIRED = "retired"
    # The pool no longer needs it.
    HOT_IDLE_TTL = "hot_idle_ttl"
    HOT_IDLE_CAP = "hot_idle_cap"
    SURPLUS = "surplus"
    MAX_AGE = "max_age"
    GAVE_WAY = "gave_way"
    ROLLOUT = "rollout"
    UNCONFIGURED = "unconfigured"
    UNKNOWN_KEY = "unknown_key"
    # Its pod does not become ready.
    CREATE_FAILED = "create_failed"
    WRONG_IMAGE = "wrong_image"
    NOT_READY = "not_ready"
    UNSCHEDULABLE = "unschedulable"
    # Its pod does not stay.
    UNHEALTHY = "unhealthy"
    PROBE_FAILED = "probe_failed"
    DISRUPTED = "disrupted"
    POD_TERMINATING = "pod_terminating"
    CONTAINER_ENDED = "container_ended"
    POD_GONE = "pod_gone"
    TABLE_BEHIND = "table_behind"
    STOPPED = "stopped"
    # Its node, which was being removed, stays: it is no longer leaving.
    NODE_RETURNED = "node_returned"
    # The delete of its pod was accepted.
    POD_DELETED = "pod_deleted"


class Source(StrEnum):
    """The source of a granted worker."""

    HOT_IDLE = "hot_idle"
    WARM = "warm"
