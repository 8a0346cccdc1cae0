"""collect_garbage: what is over does not grow for ever. Claims before the workers they name, in bounded batches, each a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable

from pool.passes.running import Pass, Run
from pool.store import Tx, garbage

BATCHES_PER_RUN = 20


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


def _drop(run: Run, what: str, batch: Callable[[Tx], int]) -> None:
    if run.dry_run:
        return
    for _ in range(BATCHES_PER_RUN):
        run.must_go_on()
        with run.deps.store.write() as tx:
            dropped = batch(tx)
        run.did(f"{what}_dropped", dropped)
        if dropped < run.limit:
            return
    run.overflowed = True


COLLECT_GARBAGE = Pass(name="collect_garbage", run=run)
