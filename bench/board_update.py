"""What an update of the board costs a browser at 10,000 workers: time in Chromium, and bytes. `python -m bench.board_update`; needs Chromium, so it is
not part of `make bench`."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import structlog
from playwright.sync_api import expect

from pool.store import connect, migrations
from tests.support.board_server import BoardServer
from tests.support.browser import chromium, opened
from tests.support.busy_hour import many
from tests.support.world import World

WORKERS, MOVES, ROUNDS = 10_000, 300, 8
LIMIT_MS, LIMIT_BYTES = 50.0, 200_000
_MOVE = (
    "UPDATE workers SET state = 'draining', epoch = epoch + 1"
    f" WHERE id IN (SELECT id FROM workers WHERE state = 'idle' LIMIT {MOVES})"
)


def main() -> int:
    """0 if the median update and the largest message are below their limits."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory() as folder:
        store = connect(f"sqlite:///{Path(folder) / 'pool.db'}")
        migrations.upgrade(store)
        many(store, WORKERS)
        with BoardServer(World(store)) as board, chromium() as browser, opened(browser) as (page, _):
            page.goto(board.url)
            expect(page.locator("#fleet")).to_have_attribute("data-cells", str(WORKERS))
            for done in range(1, ROUNDS + 1):
                with store.write() as tx:
                    tx.exec_driver_sql(_MOVE)
                expect(page.locator("[data-state=draining] b")).to_have_text(f"{done * MOVES:,}")
            found = page.evaluate("performance.getEntriesByName('update').map(e => [e.duration, e.detail])")
        store.close()
    first, *updates = found
    moving = sorted(ms for ms, size in updates if size > 2_000)
    median, largest = moving[len(moving) // 2], max(size for _, size in found)
    print(f"whole picture of {WORKERS} workers   {first[0]:6.1f} ms  {first[1] / 1000:6.1f} kB")
    print(
        f"update with {MOVES} moves, median    {median:6.1f} ms of {LIMIT_MS:g}  (slowest {moving[-1]:.1f} ms)"
    )
    print(f"largest message                   {largest / 1000:6.1f} kB of {LIMIT_BYTES / 1000:g}")
    return 0 if median < LIMIT_MS and largest < LIMIT_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
