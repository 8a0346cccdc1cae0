"""What all browsers are told, read once for all of them. One reader, one snapshot a second while anybody looks, none while nobody does.

Cells follow the journal: what it has new entries about is read again, by key. Entries of transactions that commit late bear lower numbers than
those already seen, so a stretch before the last one is looked at again, and now and then the whole table is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from pool import reporting
from pool.board.fleet import Changed, Fleet
from pool.clock import Clock
from pool.errors import PoolError
from pool.reporting.history import Hour
from pool.settings import Settings
from pool.store import Store, deeds, journal, looking

log = structlog.get_logger(__name__)

PERIOD_S = 1.0
# A page that was just served wants its first update; after that only listeners count.
WANTED_FOR_S = 10.0
COMPARE_EVERY = 60
LOOK_BACK = 200
ENTRIES_PER_TURN = 5000
MOVES_SHOWN = 40
DEEDS_SHOWN, REFUSALS_SHOWN = 5, 2
FRAMES_KEPT = 30
MOST_LISTENERS = 200
_SILENCE_S = 15.0

# Renders the panels of a page from what was seen.
Render = Callable[["Seen"], dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One reading of the pool."""

    status: dict[str, Any]
    hour: list[dict[str, int]]
    idle_cost: dict[str, Any]
    moves: list[dict[str, Any]]
    deeds: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One update, as it goes to every browser."""

    version: int
    text: str


class TooMany(PoolError):
    """More browsers than one board serves."""


class Feed:
    """The one reader, and those who listen."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, render: Render) -> None:
        self._store, self._settings, self._clock, self._render = store, settings, clock, render
        self.fleet = Fleet()
        self.seen: Seen | None = None
        self.panels: dict[str, str] = {}
        self.trouble = ""
        self.readings = 0
        self._hour: Hour | None = None
        self._entry = 0
        self._version = 0
        self._frames: deque[Frame] = deque(maxlen=FRAMES_KEPT)
        self._listeners = 0
        self._wanted_at = float("-inf")
        self._woken = asyncio.Event()
        self._news = asyncio.Condition()
        self._one_at_a_time = asyncio.Lock()

    async def run(self) -> None:
        """Read while anybody wants to know, until cancelled."""
        while True:
            if not self._is_wanted():
                self._woken.clear()
                await self._woken.wait()
            await self.refresh()
            await asyncio.sleep(PERIOD_S)

    async def fresh(self) -> Seen:
        """What a new page shows: the latest reading if there is a recent one, else one of its own. Raises what the reading raised."""
        recent = self.seen is not None and self._is_wanted() and not self.trouble
        self._wanted_at = self._clock.monotonic()
        self._woken.set()
        if not recent:
            await self.refresh()
        if self.seen is None:
            raise PoolError(self.trouble)
        return self.seen

    async def refresh(self) -> None:
        """One reading, told to all listeners."""
        async with self._one_at_a_time:
            try:
                seen, changed = await asyncio.to_thread(self._read)
            except Exception as exc:  # noqa: BLE001 - the reader outlives whatever one reading raises, and says so
                log.warning("board_reading_failed", cause=str(exc))
                self.trouble = str(exc) if isinstance(exc, PoolError) else f"{type(exc).__name__}: {exc}"
                await self._tell({"trouble": self.trouble})
                return
            self.seen, self.trouble = seen, ""
            panels = self._render(seen)
            new = {name: html for name, html in panels.items() if self.panels.get(name) != html}
            self.panels = panels
            cells = self.fleet.update(changed) if changed else None
            await self._tell({"at": seen.status["at"], "cells": cells, "panels": new})

    def must_have_room(self) -> None:
        """Raises if no more browsers can listen; asked before a stream begins, while it can still be answered with a refusal."""
        if self._listeners >= MOST_LISTENERS:
            raise TooMany(f"{MOST_LISTENERS} browsers are the most that one board serves")

    async def listen(self) -> AsyncIterator[str]:
        """Everything now, then every change; a listener that falls too far behind gets everything again."""
        self.must_have_room()
        self._listeners += 1
        try:
            await self.fresh()
            version = self._version
            yield self._whole()
            while True:
                frames = await self._after(version)
                if not frames:
                    yield ": still here\n\n"
                elif frames[0].version > version + 1:
                    version = self._version
                    yield self._whole()
                else:
                    version = frames[-1].version
                    yield "".join(f.text for f in frames)
        finally:
            self._listeners -= 1

    async def _after(self, version: int) -> list[Frame]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE_S), self._news:
                await self._news.wait_for(lambda: self._version > version)
        return [f for f in self._frames if f.version > version]

    async def _tell(self, what: dict[str, Any]) -> None:
        async with self._news:
            self._version += 1
            self._frames.append(Frame(version=self._version, text=_event(what)))
            self._news.notify_all()

    def _whole(self) -> str:
        at = self.seen.status["at"] if self.seen else None
        return _event(
            {"at": at, "cells": self.fleet.whole(), "panels": self.panels, "trouble": self.trouble or None}
        )

    def _is_wanted(self) -> bool:
        return self._listeners > 0 or self._clock.monotonic() - self._wanted_at < WANTED_FOR_S

    def _read(self) -> tuple[Seen, Changed]:
        """One reading: a fixed number of statements, whatever the fleet's size and however many look."""
        status = reporting.status(self._store, self._settings)
        with self._store.snapshot() as tx:
            if self._hour is None:
                self._hour = Hour.read(tx)
            changed = self._follow(tx)
            moves = journal.latest(tx, limit=MOVES_SHOWN)
            done = deeds.latest(tx, limit=DEEDS_SHOWN, refused=REFUSALS_SHOWN)
        self._hour.see(datetime.fromisoformat(status["at"]), _counts(status))
        self.readings += 1
        seen = Seen(
            status=status,
            hour=self._hour.by_state(),
            idle_cost=self._hour.idle_cost(self._settings.profiles),
            moves=[reporting.entry(e) for e in reversed(moves)],
            deeds=[reporting.deed(d) for d in reversed(done)],
        )
        return seen, changed

    def _follow(self, tx: Any) -> Changed:
        new = looking.moved_since(tx, max(0, self._entry - LOOK_BACK), limit=ENTRIES_PER_TURN)
        behind = len(new) == ENTRIES_PER_TURN
        if self.readings % COMPARE_EVERY == 0 or behind:
            self._entry = looking.last_entry(tx)
            return self.fleet.see(looking.cells(tx), all_of_them=True)
        self._entry = max([self._entry, *(number for number, _ in new)])
        ids = {worker_id for _, worker_id in new}
        return self.fleet.see(looking.cells(tx, ids) if ids else [])


def _counts(status: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {
        (name, state): n for name, p in status["profiles"].items() for state, n in p["states"].items() if n
    }


def _event(what: dict[str, Any]) -> str:
    """JSON holds no line break, so one line of data is all of it."""
    told = {k: v for k, v in what.items() if v is not None}
    return f"data: {json.dumps(told, separators=(',', ':'))}\n\n"
