"""collect_garbage: what is over does not grow for ever. Claims before the workers they name, in bounded batches, each a transaction of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pool.passes.running import Pass, Run
from pool.store import Tx, garbage

# For each kind of rows, at some ten thousand rows a second; what is left then is for the next run. All kinds together stay below the time after which an
# unfinished task is delivered again.
SECONDS_PER_RUN = 10.0


def run(run: Run) -> None:
    """Everything past its retention, or as much of it as fits one run."""
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
        run.must_go_on()
        dropped = _one_batch(run, batch)
        run.did(f"{what}_dropped", dropped)
        if dropped < run.limit or run.dry_run:
            return
    run.overflowed = True


def _one_batch(run: Run, batch: Callable[[Tx], int]) -> int:
    """A dry run does it, too, and takes it back."""
    dropped = 0
    with contextlib.suppress(_TakenBack), run.deps.store.write() as tx:
        dropped = batch(tx)
        if run.dry_run:
            raise _TakenBack
    return dropped


class _TakenBack(Exception):
    """Ends a transaction without keeping it."""


COLLECT_GARBAGE = Pass(name="collect_garbage", run=run)
