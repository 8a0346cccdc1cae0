"""The updates for all browsers, read once for all of them: one snapshot per second while a browser
listens, none otherwise.

Cells follow the journal: workers with new entries are read again by key. Transactions that commit
late add entries with lower numbers than those already seen, so the last `LOOK_BACK` entries are
read again each time, and all workers are compared every `COMPARE_EVERY` readings.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from pool.core.clock import Clock
from pool.core.errors import PoolError
from pool.core.settings import Settings
from pool.ops import reporting
from pool.ops.board.fleet import Changed, FleetPicture
from pool.ops.reporting.history import Hour
from pool.store import Store, audit, journal, operator_queries

log = structlog.get_logger(__name__)

PERIOD_S = 1.0
# Keep reading this long after a page was served, until its browser listens.
WANTED_FOR_S = 10.0
COMPARE_EVERY = 60
LOOK_BACK = 200
ENTRIES_PER_TURN = 5000
MOVES_SHOWN = 40
DEEDS_SHOWN, REFUSALS_SHOWN = 5, 2
FRAMES_KEPT = 30
MOST_LISTENERS = 200
_SILENCE_S = 15.0

# Renders the panels of a page from one reading.
Render = Callable[["FeedState"], dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedState:
    """One reading of the pool."""

    status: dict[str, Any]
    hour: list[dict[str, int]]
    idle_cost: dict[str, Any]
    moves: list[dict[str, Any]]
    deeds: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One update, as sent to every browser."""

    version: int
    text: str


class TooMany(PoolError):
    """More browsers than one board serves."""


class Feed:
    """Reads the pool and sends updates to the listening browsers."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, render: Render) -> None:
        self._store, self._settings, self._clock, self._render = store, settings, clock, render
        self.fleet = FleetPicture()
        self.seen: FeedState | None = None
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
        """Read the pool while a browser listens, until cancelled."""
        while True:
            if not self._is_wanted():
                self._woken.clear()
                await self._woken.wait()
            await self.refresh()
            await asyncio.sleep(PERIOD_S)

    async def fresh(self) -> FeedState:
        """Return a recent reading, or a new one. Raises `PoolError` if reading fails and there is none."""
        recent = self.seen is not None and self._is_wanted() and not self.trouble
        self._wanted_at = self._clock.monotonic()
        self._woken.set()
        if not recent:
            await self.refresh()
        if self.seen is None:
            raise PoolError(self.trouble)
        return self.seen

    async def refresh(self) -> None:
        """Read the pool once and send the changes to all listeners."""
        async with self._one_at_a_time:
            try:
                seen, changed = await asyncio.to_thread(self._read)
            except Exception as exc:  # noqa: BLE001 - a failed reading is logged and shown
                log.warning("board_reading_failed", cause=str(exc))
                self.trouble = str(exc) if isinstance(exc, PoolError) else f"{type(exc).__name__}: {exc}"
                await self._send({"trouble": self.trouble})
                return
            self.seen, self.trouble = seen, ""
            panels = self._render(seen)
            new = {name: html for name, html in panels.items() if self.panels.get(name) != html}
            self.panels = panels
            cells = self.fleet.update(changed) if changed else None
            await self._send({"at": seen.status["at"], "cells": cells, "panels": new})

    def must_have_room(self) -> None:
        """Raise `TooMany` if no more browsers can listen; called before a stream starts, while an error
        status is possible."""
        if self._listeners >= MOST_LISTENERS:
            raise TooMany(
                f"{MOST_LISTENERS} browsers are connected, the maximum of one board: close some, "
                "or try again later"
            )

    async def listen(self) -> AsyncGenerator[str]:
        """Yield the whole picture, then every change; a listener that is too slow gets the whole picture
        again."""
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

    async def _send(self, what: dict[str, Any]) -> None:
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

    def _read(self) -> tuple[FeedState, Changed]:
        """Read the pool once: a fixed number of statements for any number of workers and browsers."""
        status = reporting.status(self._store, self._settings)
        with self._store.snapshot() as tx:
            if self._hour is None:
                self._hour = Hour.read(tx)
            changed = self._follow(tx)
            moves = journal.latest(tx, limit=MOVES_SHOWN)
            done = audit.latest(tx, limit=DEEDS_SHOWN, refused=REFUSALS_SHOWN)
        self._hour.see(datetime.fromisoformat(status["at"]), _counts(status))
        self.readings += 1
        seen = FeedState(
            status=status,
            hour=self._hour.by_state(),
            idle_cost=self._hour.idle_cost(self._settings.profiles),
            moves=[reporting.entry(e) for e in reversed(moves)],
            deeds=[reporting.deed(d) for d in reversed(done)],
        )
        return seen, changed

    def _follow(self, tx: Any) -> Changed:
        new = operator_queries.moved_since(tx, max(0, self._entry - LOOK_BACK), limit=ENTRIES_PER_TURN)
        behind = len(new) == ENTRIES_PER_TURN
        if self.readings % COMPARE_EVERY == 0 or behind:
            self._entry = operator_queries.last_entry(tx)
            return self.fleet.see(operator_queries.cells(tx), all_of_them=True)
        self._entry = max([self._entry, *(number for number, _ in new)])
        ids = {worker_id for _, worker_id in new}
        return self.fleet.see(operator_queries.cells(tx, ids) if ids else [])


def _counts(status: dict[str, Any]) -> dict[tuple[str, str], int]:
    return {
        (name, state): n for name, p in status["profiles"].items() for state, n in p["states"].items() if n
    }


def _event(what: dict[str, Any]) -> str:
    """Return a server-sent event with one data line; the JSON contains no line break."""
    data = {k: v for k, v in what.items() if v is not None}
    return f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
