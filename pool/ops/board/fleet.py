"""The fleet as a picture. Pure. Every worker has a place and keeps it for life; a new worker of the
same profile reuses it.

A browser gets all places once, and then only changes. Places and orgs are sent as numbers. Worker
ids and org names stay here, and the browser fetches them when it needs them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pool.core.states import TERMINAL, State
from pool.store.operator_queries import Cell

STATES = tuple(str(s) for s in State)
_INDEX = {state: i for i, state in enumerate(STATES)}
# Number of updates for which an ended worker is still shown.
GHOST_TICKS = 8
# If a larger share of the fleet has changed, the whole picture is sent.
WHOLE_ABOVE = 0.3


@dataclass(slots=True)
class Changed:
    """Places that an update has changed."""

    placed: set[int] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.placed or self.gone)


class Names:
    """Maps names to small numbers; a number never changes its meaning."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._number: dict[str, int] = {}

    def number(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self._number:
            self._number[name] = len(self.all)
            self.all.append(name)
        return self._number[name]


class FleetPicture:
    """The workers by place."""

    def __init__(self) -> None:
        self._at: dict[int, Cell] = {}
        self._place: dict[str, int] = {}
        self._free: dict[str, list[int]] = {}
        self._ghosts: deque[tuple[int, int, str]] = deque()
        self._tick = 0
        self._next = 0
        self.profiles, self.orgs = Names(), Names()

    def __len__(self) -> int:
        return len(self._at)

    def at(self, place: int) -> Cell | None:
        """Return the worker at a place, or None."""
        return self._at.get(place)

    def see(self, cells: Iterable[Cell], *, all_of_them: bool = False) -> Changed:
        """Take in rows and return what changed. With `all_of_them`, workers that are not among the rows have
        ended."""
        changed = Changed()
        self._tick += 1
        self._bury(changed)
        seen = set()
        for cell in cells:
            seen.add(cell.id)
            self._see_one(cell, changed)
        if all_of_them:
            for worker_id in [i for i in self._place if i not in seen]:
                before = self._at[self._place[worker_id]]
                if before.state not in TERMINAL:
                    ended = Cell(before.id, before.profile, State.RETIRED, before.org, leaving=False)
                    self._see_one(ended, changed)
        return changed

    def update(self, changed: Changed) -> dict[str, Any]:
        """Return a change as sent to browsers: some cells, or the whole picture if much has changed."""
        if len(changed.placed) > WHOLE_ABOVE * max(len(self._at), 100):
            return self.whole()
        return {
            "set": [[p, *self._numbers(self._at[p])] for p in sorted(changed.placed)],
            "gone": sorted(changed.gone),
            "profiles": self.profiles.all,
        }

    def whole(self) -> dict[str, Any]:
        """Return the whole picture in columns; places are encoded as steps from one to the next."""
        places = sorted(self._at)
        steps = [b - a for a, b in zip([-1, *places], places, strict=False)]
        numbers = [self._numbers(self._at[p]) for p in places]
        return {
            "steps": steps,
            "states": "".join(str(n[0]) for n in numbers),
            "profile": [n[1] for n in numbers],
            "org": [n[2] for n in numbers],
            "leaving": [i for i, n in enumerate(numbers) if n[3]],
            "profiles": self.profiles.all,
        }

    def orgs_like(self, part: str) -> list[int]:
        """Return the numbers of orgs whose name contains `part`, ignoring case."""
        return [i for i, name in enumerate(self.orgs.all) if part.lower() in name.lower()]

    def _numbers(self, cell: Cell) -> tuple[int, int, int, int]:
        return (
            _INDEX[cell.state],
            self.profiles.number(cell.profile),
            self.orgs.number(cell.org),
            int(cell.leaving),
        )

    def _see_one(self, cell: Cell, changed: Changed) -> None:
        place = self._place.get(cell.id)
        if place is None:
            if cell.state in TERMINAL:
                return
            place = self._settle(cell)
        elif self._at[place] == cell:
            return
        if cell.state in TERMINAL and self._at[place].state not in TERMINAL:
            self._ghosts.append((self._tick + GHOST_TICKS, place, cell.id))
        self._at[place] = cell
        changed.placed.add(place)

    def _settle(self, cell: Cell) -> int:
        free = self._free.get(cell.profile)
        if free:
            place = heapq.heappop(free)
        else:
            place, self._next = self._next, self._next + 1
        self._place[cell.id] = place
        self._at[place] = cell
        return place

    def _bury(self, changed: Changed) -> None:
        while self._ghosts and self._ghosts[0][0] <= self._tick:
            _, place, worker_id = self._ghosts.popleft()
            cell = self._at.pop(place)
            del self._place[worker_id]
            heapq.heappush(self._free.setdefault(cell.profile, []), place)
            changed.gone.add(place)
