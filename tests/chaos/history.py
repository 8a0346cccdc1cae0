"""The events that clients write, one per line, and their reader. Times are of this machine's
monotonic clock, so they compare between processes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class HistoryKind(StrEnum):
    """An event of a client."""

    ASKED = "asked"
    GRANTED = "granted"
    REFUSED = "refused"
    UNANSWERED = "unanswered"
    USED = "used"
    TURNED_AWAY = "turned away"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    RELEASING = "releasing"
    RELEASED = "released"
    UNRELEASED = "unreleased"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One line. `about` is the outcome, reason or cause."""

    t: float
    what: HistoryKind
    request: str
    org: str
    claim: str = ""
    worker: str = ""
    epoch: int = 0
    about: str = ""

    def line(self) -> str:
        return json.dumps({name: getattr(self, name) for name in self.__slots__})


@dataclass(slots=True, kw_only=True)
class ClaimHold:
    """A claim as its holder saw it: from the answer until it released it, learned that it was lost,
    or was killed.
    """

    claim: str
    worker: str
    epoch: int
    org: str
    request: str
    begun: float
    ended: float
    lost: str = ""
    releasing: bool = False
    released: str = ""
    turned_away: list[str] = field(default_factory=list)
    uses: int = 0


def read(files: Sequence[Path]) -> list[list[HistoryEvent]]:
    """Return one list per client process. The last line of a killed one may be incomplete."""
    return [_events(file) for file in files if file.exists()]


def _events(file: Path) -> list[HistoryEvent]:
    found = []
    for line in file.read_text().splitlines():
        try:
            raw: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        found.append(HistoryEvent(**{**raw, "what": HistoryKind(raw["what"])}))
    return found


def holds(clients: Sequence[Sequence[HistoryEvent]]) -> list[ClaimHold]:
    """Return every hold of every client. One that was never released lasts until its client's last
    event.
    """
    found: list[ClaimHold] = []
    for events in clients:
        last = max((e.t for e in events), default=0.0)
        held: dict[str, ClaimHold] = {}
        for e in events:
            if e.what is HistoryKind.GRANTED:
                held[e.claim] = ClaimHold(
                    claim=e.claim, worker=e.worker, epoch=e.epoch, org=e.org, request=e.request, begun=e.t,
                    ended=last
                )  # fmt: skip
            elif e.claim in held:
                _learn(held[e.claim], e)
        found += held.values()
    return found


def _learn(hold: ClaimHold, e: HistoryEvent) -> None:
    if e.what is HistoryKind.USED:
        hold.uses += 1
    elif e.what is HistoryKind.TURNED_AWAY:
        hold.turned_away.append(e.about)
    elif e.what is HistoryKind.LOST:
        hold.lost, hold.ended = e.about, min(hold.ended, e.t)
    elif e.what is HistoryKind.RELEASING:
        hold.releasing, hold.ended = True, min(hold.ended, e.t)
    elif e.what is HistoryKind.RELEASED:
        hold.released = e.about
