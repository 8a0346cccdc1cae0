"""A worker's history in sentences, from its journal. Pure.

The cause of its end is the entry that decided the end, not the last entry. For example, a worker
that was marked as leaving while in use ended because of the mark, not because its holder released
it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pool.core.states import LEAVING, MoveReason, State
from pool.store.audit import AuditEntry
from pool.store.journal import Entry

R = MoveReason
# Why a worker drained with the end of its claim, by reason: with {org}, {claim}, {who} and {detail}.
_CLAIM_ENDS: dict[MoveReason, str] = {
    R.RELEASED: "{org} released it, and it was not parked",
    R.TAINTED: "{org} released it as tainted, so it is not used again",
    R.LEASE_EXPIRED: "the lease of {org} expired without a renewal (claim {claim}); its holder may "
    "still use it, so it was not parked",
    R.ABANDONED: "{org} abandoned its request before the worker was ready, and it was not parked",
    R.ACTIVATION_FAILED: "it could not be activated for {org}{detail}",
    R.RETIRED: "the claim of {org} on it was ended by {who}{detail}",
}
# Operator actions on a worker without a claim.
_BY_OPERATORS: dict[MoveReason, str] = {R.DRAINED: "it was drained by", R.RETIRED: "it was retired by"}
_REAPED = frozenset({R.HOT_IDLE_TTL, R.HOT_IDLE_CAP, R.SURPLUS, R.MAX_AGE})
# Text of a reason, where its detail alone is not enough.
_PHRASES: dict[MoveReason, str] = {
    R.DRAINED: "drained by an operator",
    R.SURPLUS: "surplus",
    R.GAVE_WAY: "it was removed to make room for a waiting request, because the pool was at its cap",
    R.UNKNOWN_KEY: "created with a master key that is no longer configured",
    R.UNHEALTHY: "its pod is no longer ready",
    R.POD_TERMINATING: "its pod is terminating",
    R.CONTAINER_ENDED: "its container ended",
    R.POD_GONE: "its pod is gone",
    R.STOPPED: "the embedded pool was stopped",
}

# Text of entering a state; moves with their own text are in `_MOVES`.
_ENTERED: dict[State, str] = {
    State.SPAWNING: "its slot was created ({detail})",
    State.IDLE: "its pod became ready{took}; it is warm and unclaimed",
    State.HOT: "claimed by {org}{took} {claim}",
    State.RESERVED: "reserved for {org}{took} {claim}",
    State.ACTIVATING: "its activation for {org} started{took}",
    State.HOT_IDLE: "{reason} by {org}{took} of use; parked for this org",
    State.RETIRED: "its pod was deleted{took}",
}
_MOVES: dict[tuple[State | None, State], str] = {
    (State.HOT_IDLE, State.HOT): "claimed again by {org}{took} of being parked {claim}",
    (State.ACTIVATING, State.HOT): "activated for {org}{took}; its lease started",
}


def because(reason: MoveReason, detail: str | None) -> str:
    """Return a reason with its detail as text."""
    return ": ".join(filter(None, (_PHRASES.get(reason, ""), detail))) or str(reason).replace("_", " ")


def cause(entries: Sequence[Entry], deeds: Sequence[AuditEntry] = ()) -> str:
    """Return why a worker ended, in one sentence; empty if it has not ended."""
    swept = next((d for d in reversed(deeds) if d.what == "orphan_deleted"), None)
    orphan = (
        f"the sweep found its pod to be an orphan and requested its deletion: {swept.why}" if swept else ""
    )
    end = _end(entries)
    if end is None:
        return _sentence(orphan and f"the database has no such worker; {orphan}" if not entries else orphan)
    return _sentence("; ".join(part for part in (_why_it_ended(entries, end), orphan) if part))


def sentences(entries: Sequence[Entry]) -> list[tuple[Entry, str]]:
    """Return every entry with its meaning in a sentence."""
    history = []
    before: Entry | None = None
    for e in entries:
        history.append((e, _sentence(_means(e, before, entries))))
        before = e
    return history


def _end(entries: Sequence[Entry]) -> Entry | None:
    """Return the entry that decided the end: the move to draining or lost, not the deletion that
    follows it.
    """
    ends = {*LEAVING, State.LOST}
    return next((e for e in entries if e.to_state in ends and e.from_state != e.to_state), None)


def _why_it_ended(entries: Sequence[Entry], end: Entry) -> str:
    mark = next((e for e in reversed(entries) if e.is_mark), None)
    held = _held_before(entries, end)
    if end.to_state == State.LOST:
        used = f" while {end.org} used it (claim {held})" if held else ""
        return f"it was lost: {because(end.reason, end.detail)}{used}"
    if mark is not None and held and end.reason is mark.reason:
        return f"{_drained(mark)}; it was in use by {mark.org} at that time, and left when the claim ended"
    if held and end.reason in _CLAIM_ENDS:
        detail = f": {end.detail}" if end.detail else ""
        return _CLAIM_ENDS[end.reason].format(org=end.org, claim=held, detail=detail, who=end.who)
    if held:
        return f"{end.org} released it, and it was not parked: {because(end.reason, end.detail)}"
    return _drained(end)


def _drained(e: Entry) -> str:
    """Return who drained the worker if it was an operator, else the reason."""
    if e.reason in _BY_OPERATORS:
        return f"{_BY_OPERATORS[e.reason]} {e.who}" + (f": {e.detail}" if e.detail else "")
    text = because(e.reason, e.detail)
    if e.from_state == State.SPAWNING:
        return f"it never became ready: {text}"
    if e.reason in _REAPED:
        return f"it was reaped: {text}"
    return text if e.reason is R.GAVE_WAY else f"it was taken out of use: {text}"


def _held_before(entries: Sequence[Entry], end: Entry) -> str:
    """Return the id of the claim that ended with this entry; empty if there was none."""
    at = next(i for i, e in enumerate(entries) if e.id == end.id)
    return (entries[at - 1].claim_id or "") if at else ""


def _means(e: Entry, before: Entry | None, entries: Sequence[Entry]) -> str:
    took = "" if before is None else f" after {duration((e.at - before.at).total_seconds())}"
    if e.is_mark:
        return f"marked as leaving, to drain when the claim of {e.org} ends: {because(e.reason, e.detail)}"
    if e.is_unmark:
        return "no longer leaving: its node stays"
    if e.to_state in LEAVING or e.to_state == State.LOST:
        return _why_it_ended(entries, e)
    how = _MOVES.get((e.from_state, e.to_state)) or _ENTERED[e.to_state]
    claim = f"(claim {e.claim_id}, epoch {e.epoch})"
    return how.format(org=e.org, took=took, claim=claim, reason=e.reason, detail=e.detail)


def duration(s: float) -> str:
    """Return a length of time in a readable unit."""
    if s < 1:
        return f"{s * 1000:.0f} ms"
    if s < 120:
        return f"{s:.1f} s" if s < 10 else f"{s:.0f} s"
    if s < 7200:
        return f"{s / 60:.0f} min"
    return f"{s / 3600:.1f} h" if s < 172_800 else f"{s / 86_400:.1f} days"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
