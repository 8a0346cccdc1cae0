"""The cost of a board update for a browser at 10,000 workers, and its size in bytes. Run with
`python -m bench.board_update`; needs Chromium, so it is not part of `make bench`.

The cost is the CPU time of the page's main thread in Chromium's own trace: the update's code, and
the styles, layout and painting that follow. Time of other processes does not count.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import structlog
from playwright.sync_api import Page, expect

from pool.store import Store, connect, migrations
from tests.support.board_server import BoardServer
from tests.support.browser import chromium, opened
from tests.support.busy_hour import many
from tests.support.postgres_server import PostgresServer
from tests.support.world import World

WORKERS, MOVES, ROUNDS = 10_000, 300, 8
LIMIT_MS, LIMIT_BYTES = 50.0, 200_000
_MOVE = (
    "UPDATE workers SET state = 'draining', epoch = epoch + 1"
    " WHERE id IN (SELECT id FROM workers WHERE state = 'idle' LIMIT {})"
)
_LEAVE = "UPDATE workers SET state = 'retired' WHERE state = 'draining'"


_RENDERING = frozenset({"UpdateLayoutTree", "Layout", "PrePaint", "Paint", "Layerize", "Commit"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateCost:
    """One update."""

    ms: float
    size: int


def main() -> int:
    """Return 0 if every kind of update is below its limits in the median."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    kinds: list[str] = []
    server = PostgresServer().start()
    try:
        store = connect(server.create_database("board"))
        migrations.upgrade(store)
        many(store, WORKERS)
        with BoardServer(World(store)) as board, chromium() as browser, opened(browser) as (page, _):
            browser.start_tracing(page=page, categories=["devtools.timeline"])
            page.goto(board.url)
            for kind in _rounds(page, store):
                kinds += [kind] * (_count(page) - len(kinds))
            sizes = page.evaluate("performance.getEntriesByName('update').map(e => e.detail)")
            costs = _costs(json.loads(browser.stop_tracing())["traceEvents"], sizes)
        store.close()
    finally:
        server.destroy()
    by_kind: dict[str, list[UpdateCost]] = {}
    for kind, cost in zip(kinds, costs, strict=False):
        by_kind.setdefault(kind, []).append(cost)
    return max([_judged(kind, found) for kind, found in by_kind.items()])


def _rounds(page: Page, store: Store) -> Iterator[str]:
    """Cause a change, wait until the page shows it, and return what it was."""
    _shows_cells(page, WORKERS)
    yield "first"
    for done in range(1, ROUNDS + 1):
        _do(store, _MOVE.format(MOVES))
        expect(page.locator("[data-state=draining] b")).to_have_text(f"{done * MOVES:,}")
    yield f"{MOVES} move"
    left = WORKERS - ROUNDS * MOVES
    _do(store, _LEAVE)
    _shows_cells(page, left)
    yield f"{ROUNDS * MOVES:,} leave"
    for done in range(1, 4):
        many(store, MOVES, first=WORKERS * done)
        _shows_cells(page, left + done * MOVES)
    yield f"{MOVES} come"
    _do(store, _MOVE.format(WORKERS))
    expect(page.locator("[data-state=idle] b")).to_have_text("0")
    yield "most move, sent as a full update"


def _shows_cells(page: Page, count: int) -> None:
    expect(page.locator("#fleet")).to_have_attribute("data-cells", str(count))


def _do(store: Store, statement: str) -> None:
    with store.write() as tx:
        tx.exec_driver_sql(statement)


def _count(page: Page) -> int:
    return int(page.evaluate("performance.getEntriesByName('update').length"))


def _costs(events: list[dict[str, Any]], sizes: list[int]) -> list[UpdateCost]:
    """Return each update's own time on its thread, and that of the page until the next one."""
    mine = [
        e for e in events if e["name"] == "FunctionCall" and e["args"]["data"].get("functionName") == "heard"
    ]
    mine.sort(key=lambda e: float(e["ts"]))
    ends = [float(e["ts"]) for e in mine[1:]] + [float("inf")]
    rendering = [e for e in events if e["name"] in _RENDERING and "tdur" in e]
    return [
        UpdateCost(
            ms=(e["tdur"] + sum(r["tdur"] for r in rendering if r["tid"] == e["tid"] and e["ts"] <= r["ts"] < end)) / 1000,
            size=size,
        )
        for e, end, size in zip(mine, ends, sizes, strict=False)
    ]  # fmt: skip


def _judged(what: str, found: list[UpdateCost]) -> int:
    """Leave out updates without a changed cell, unless there are no others."""
    costs = [c for c in found if c.size > 2_000] or found
    times = sorted(c.ms for c in costs)
    median, largest = times[len(times) // 2], max(c.size for c in costs)
    print(
        f"{what:28} {median:6.1f} ms of {LIMIT_MS:g} (slowest of {len(times)}: {times[-1]:.1f})   {largest / 1000:6.1f} kB of {LIMIT_BYTES / 1000:g}"
    )
    return int(median >= LIMIT_MS or largest >= LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
