"""Settle: once all pods have been taken away on purpose, the table says so, and the next start hands out none of them."""

from __future__ import annotations

from pool import observing, retiring
from pool.deps import Deps
from pool.states import State
from pool.store import workers


def all_lost(deps: Deps, why: str) -> int:
    """Every live row without a pod ends, its claim with it. How many."""
    standing = {pod.name for pod in deps.driver.list().pods}
    with deps.store.read() as tx:
        rows = [w for w in workers.live(tx) if w.id not in standing]
    for worker in rows:
        if worker.state is State.DRAINING:
            retiring.confirm(deps, worker)
        else:
            observing.lose(deps, worker, why)
    return len(rows)
