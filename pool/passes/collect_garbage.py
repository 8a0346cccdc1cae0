"""collect_garbage: delete ended rows past their retention, in bounded batches.

Claims are deleted before the workers that they name; each batch is a transaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pool.passes.running import Pass, Run
from pool.store import Tx, garbage

# Time for each kind of rows, at about ten thousand rows per second; the rest is left to the next
# run. All kinds together take less than the time after which Celery redelivers an unfinished task.
SECONDS_PER_RUN = 10.0


def run(run: Run) -> None:
    """Delete everything past its retention, or as much as fits one run."""
    pool = run.deps.settings.pool
    _drop(
        run,
        "requests",
        lambda tx: garbage.decided_requests(tx, older_than_s=pool.terminal_keep_s, limit=run.limit),
    )
    _drop(
        run, "claims", lambda tx: garbage.ended_claims(tx, older_than_s=pool.terminal_keep_s, limit=run.limit)
    )
    _drop(
        run,
        "workers",
        lambda tx: garbage.terminal_workers(tx, older_than_s=pool.terminal_keep_s, limit=run.limit),
    )
    _drop(
        run,
        "journal",
        lambda tx: garbage.journal_entries(tx, older_than_s=pool.journal_keep_s, limit=run.limit),
    )
    _drop(
        run,
        "deeds",
        lambda tx: garbage.old_audit_entries(tx, older_than_s=pool.journal_keep_s, limit=run.limit),
    )


def _drop(run: Run, what: str, batch: Callable[[Tx], int]) -> None:
    clock = run.deps.clock
    ends_at = clock.monotonic() + SECONDS_PER_RUN
    while clock.monotonic() < ends_at:
        run.raise_if_interrupted()
        dropped = _one_batch(run, batch)
        run.did(f"{what}_dropped", dropped)
        if dropped < run.limit or run.dry_run:
            return
    run.overflowed = True


def _one_batch(run: Run, batch: Callable[[Tx], int]) -> int:
    """Delete one batch and return its size. A dry run rolls it back."""
    dropped = 0
    with contextlib.suppress(_TakenBack), run.deps.store.write() as tx:
        dropped = batch(tx)
        if run.dry_run:
            raise _TakenBack
    return dropped


class _TakenBack(Exception):
    """Rolls back a transaction."""


COLLECT_GARBAGE = Pass(name="collect_garbage", run=run)
