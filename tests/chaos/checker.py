"""Check a history. Pure: events, holds and rows in, sentences about broken promises out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from pool.store.journal import Entry
from tests.chaos.history import ClaimHold, HistoryEvent, HistoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """The final row of a claim."""

    claim: str
    worker: str
    org: str
    epoch: int
    ended_why: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """The final row of a request."""

    org: str
    request: str
    state: str
    claim: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that is recorded after a run."""

    clients: Sequence[Sequence[HistoryEvent]]
    holds: Sequence[ClaimHold]
    entries: Sequence[Entry]
    claims: Mapping[str, ClaimRow]
    requests: Mapping[tuple[str, str], RequestRow]
    # Workers whose pod a fault killed: their claims may end.
    killed: Set[str] = field(default_factory=frozenset)


def violations(history: History) -> list[str]:
    """Return every promise that the history breaks."""
    return [
        *shared(history.holds),
        *taken_away(history.holds, history.killed),
        *turned_away(history.holds),
        *unknown_grants(history.holds, history.entries),
        *releases_ignored(history.holds, history.claims),
        *answers(history),
        *unanswered(history),
        *never_ended(history.claims),
    ]


def shared(held: Sequence[ClaimHold]) -> list[str]:
    """Exclusive: no two holds of one worker overlap, and no worker has two orgs."""
    by_worker: dict[str, list[ClaimHold]] = defaultdict(list)
    for hold in sorted(held, key=lambda h: h.begun):
        by_worker[hold.worker].append(hold)
    found = []
    for worker, mine in by_worker.items():
        if len(orgs := {h.org for h in mine}) > 1:
            found.append(f"{worker} served {', '.join(sorted(orgs))}")
        # Compare with the earlier hold that ends last; a short hold inside a long one would hide
        # it.
        longest = mine[0]
        for hold in mine[1:]:
            if hold.begun < longest.ended and hold.claim != longest.claim:
                found.append(
                    f"{worker} was held by {longest.claim} and {hold.claim} at once, "
                    f"for {min(longest.ended, hold.ended) - hold.begun:.2f} s"
                )
            longest = max(longest, hold, key=lambda h: h.ended)
    return found


def taken_away(held: Sequence[ClaimHold], killed: Set[str]) -> list[str]:
    """No live claim is lost: its holder was alive and renewed it, so only the end of its pod may
    end it.
    """
    return [
        f"{h.claim} on {h.worker} was taken from its holder: {h.lost}"
        for h in held
        if h.lost and h.worker not in killed
    ]


def turned_away(held: Sequence[ClaimHold]) -> list[str]:
    """A worker never refuses its holder; it would if another holder had used it with a later epoch."""
    return [f"{h.worker} turned its holder {h.claim} away: {h.turned_away[0]}" for h in held if h.turned_away]


def unknown_grants(held: Sequence[ClaimHold], entries: Sequence[Entry]) -> list[str]:
    """Every grant is in the journal, as it was answered."""
    known = {(e.claim_id, e.worker_id, e.epoch, e.org) for e in entries if e.claim_id is not None}
    return [
        f"{h.claim} was granted {h.worker} at epoch {h.epoch} for {h.org}; the journal does not know of it"
        for h in held
        if (h.claim, h.worker, h.epoch, h.org) not in known
    ]


def releases_ignored(held: Sequence[ClaimHold], claims: Mapping[str, ClaimRow]) -> list[str]:
    """An acknowledged release has ended its claim."""
    found = []
    for h in held:
        row = claims.get(h.claim)
        if h.released and (row is None or row.ended_why is None):
            found.append(f"{h.claim} was released ({h.released}) and is still live")
        if h.released == "unknown_claim":
            found.append(f"{h.claim} was granted and is unknown at its release")
    return found


def answers(history: History) -> list[str]:
    """One request has one answer, and the table has the same answer."""
    told: dict[tuple[str, str], list[str]] = defaultdict(list)
    for events in history.clients:
        for e in events:
            if e.what is HistoryKind.GRANTED:
                told[e.org, e.request].append(e.claim)
            elif e.what is HistoryKind.REFUSED:
                told[e.org, e.request].append("")
    found = []
    for (org, request), claims in told.items():
        if len(set(claims)) > 1:
            found.append(f"request {request} of {org} was answered {len(claims)} times: {claims}")
        row = history.requests.get((org, request))
        if claims[0] and (row is None or row.claim != claims[0]):
            found.append(f"request {request} of {org} was granted {claims[0]}; the table has {row}")
    return found


def unanswered(history: History) -> list[str]:
    """No request stays undecided."""
    return [
        f"request {r.request} of {r.org} is still {r.state}"
        for r in history.requests.values()
        if r.state in ("waiting", "binding")
    ]


def never_ended(claims: Mapping[str, ClaimRow]) -> list[str]:
    """All clients have ended, so every lease has ended."""
    return [
        f"{c.claim} of {c.org} has no holder and has not ended" for c in claims.values() if not c.ended_why
    ]
