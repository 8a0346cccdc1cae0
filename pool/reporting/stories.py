"""A worker's life in sentences, from its journal. Pure. The cause of its end is one sentence and the true one: what decided it, not the
last thing that happened. A worker that was marked to leave while in use went because of that mark, not because its holder released it."""

from __future__ import annotations

from collections.abc import Sequence

from pool.states import LEAVING, ClaimEnd, State
from pool.store.deeds import Deed
from pool.store.journal import Entry

_LEAVING = "leaving: "
# How the end of a claim reads, by its cause: with {org}, {claim} and {detail}.
_CLAIM_ENDS: dict[str, str] = {
    ClaimEnd.RELEASED: "{org} gave it back and it was not to be kept",
    ClaimEnd.TAINTED: "its holder {org} gave it back as tainted, so it is not used again",
    ClaimEnd.EXPIRED: "the lease of {org} ran out without a renewal (claim {claim}); its holder might still use it, so it is not kept",
    ClaimEnd.ABANDONED: "{org} had gone before it was ready, and it was not to be kept",
    ClaimEnd.ACTIVATION_FAILED: "it could not be activated for {org}{detail}",
    ClaimEnd.WORKER_LOST: "{cause} while {org} used it (claim {claim})",
    ClaimEnd.RETIRED: "the claim of {org} on it was ended by {who}{detail}",
}

# What entering a state means, with what took it there; a move of its own meaning is in `_MOVES`.
_ENTERED: dict[State, str] = {
    State.SPAWNING: "a slot was made for it ({why})",
    State.IDLE: "its pod was ready{took}; warm, for nobody yet",
    State.HOT: "claimed by {org}{took} {claim}",
    State.RESERVED: "reserved for {org}{took} {claim}",
    State.ACTIVATING: "its activation for {org} began{took}",
    State.HOT_IDLE: "{why} by {org}{took} of use; parked for its org",
    State.RETIRED: "its pod was deleted{took}",
}
_MOVES: dict[tuple[State | None, State], str] = {
    (State.HOT_IDLE, State.HOT): "claimed again by {org}{took} of being parked {claim}",
    (State.ACTIVATING, State.HOT): "activated for {org}{took}; its lease began",
}


def cause(entries: Sequence[Entry], deeds: Sequence[Deed] = ()) -> str:
    """Why it went, in one sentence; empty while it has not gone."""
    swept = next((d for d in reversed(deeds) if d.what == "orphan_deleted"), None)
    orphan = f"its pod was taken for an orphan, to be deleted: {swept.why}" if swept else ""
    end = _end(entries)
    if end is None:
        return _sentence(orphan and f"the table knows no such worker; {orphan}" if not entries else orphan)
    told = _told(entries, end)
    return _sentence("; ".join(part for part in (told, orphan) if part))


def sentences(entries: Sequence[Entry]) -> list[tuple[Entry, str]]:
    """Every entry with what it means."""
    told = []
    before: Entry | None = None
    for e in entries:
        told.append((e, _sentence(_means(e, before, entries))))
        before = e
    return told


def _end(entries: Sequence[Entry]) -> Entry | None:
    """The entry that decided the end: the move to draining or lost, not the deletion that follows it."""
    ends = {*LEAVING, State.LOST}
    return next((e for e in entries if e.to_state in ends and e.from_state != e.to_state), None)


def _told(entries: Sequence[Entry], end: Entry) -> str:
    mark = next((e for e in entries if e.why.startswith(_LEAVING)), None)
    word, _, detail = end.why.partition(": ")
    if mark is not None and end.to_state != State.LOST and word in {ClaimEnd.RELEASED, ClaimEnd.ABANDONED}:
        return f"{_by_hand(mark, mark.why.removeprefix(_LEAVING))}; it was in use by {mark.org} then, and left when that was over"
    if word in _CLAIM_ENDS and _held_before(entries, end):
        return _claim_end(word, detail, entries, end)
    if end.to_state == State.LOST:
        return f"it was lost: {end.why}"
    return _drained(end)


def _claim_end(word: str, detail: str, entries: Sequence[Entry], end: Entry) -> str:
    held = _held_before(entries, end)
    return _CLAIM_ENDS[word].format(
        org=end.org or "its holder",
        claim=held,
        detail=f": {detail}" if detail else "",
        cause=f"it was lost: {detail or 'its pod is gone'}",
        who=end.who,
    )


def _drained(end: Entry) -> str:
    why, frm = end.why, end.from_state
    if frm == State.SPAWNING or why.startswith("spawn failed"):
        return f"it never became ready: {why.removeprefix('spawn failed: ')}"
    if why == "parked past its time":
        return f"it was reaped: parked for {end.org} past its time"
    if why.startswith(("surplus", "older than")) or "parked workers than its cap" in why:
        return f"it was reaped: {why}"
    if why.startswith("gives way"):
        return "it gave way to a waiter, because the pool was at its cap"
    return _by_hand(end, why)


def _by_hand(e: Entry, why: str) -> str:
    """An operator's deed names him; the pool's own names its reason."""
    if why.startswith("drained"):
        reason = why.removeprefix("drained").removeprefix(": ")
        return f"it was drained by {e.who}" + (f": {reason}" if reason else "")
    return f"it was taken out of use: {why}"


def _held_before(entries: Sequence[Entry], end: Entry) -> str:
    """The claim that ended with this entry; empty if nobody held it."""
    at = next(i for i, e in enumerate(entries) if e.id == end.id)
    return (entries[at - 1].claim_id or "") if at else ""


def _means(e: Entry, before: Entry | None, entries: Sequence[Entry]) -> str:
    took = "" if before is None else f" after {duration((e.at - before.at).total_seconds())}"
    if e.why.startswith(_LEAVING):
        return f"marked to leave when {e.org} is done with it: {e.why.removeprefix(_LEAVING)}"
    if e.to_state in LEAVING or e.to_state == State.LOST:
        return _told(entries, e)
    how = _MOVES.get((e.from_state, e.to_state)) or _ENTERED.get(e.to_state) or "{why}"
    claim = f"(claim {e.claim_id}, epoch {e.epoch})"
    return how.format(org=e.org, took=took, claim=claim, why=e.why)


def duration(s: float) -> str:
    """A length of time as people say it."""
    if s < 1:
        return f"{s * 1000:.0f} ms"
    if s < 120:
        return f"{s:.1f} s" if s < 10 else f"{s:.0f} s"
    if s < 7200:
        return f"{s / 60:.0f} min"
    return f"{s / 3600:.1f} h" if s < 172_800 else f"{s / 86_400:.1f} days"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
