"""After `up` has removed all pods: end their rows, so that the next start hands out none of them."""

from __future__ import annotations

from pool.core.states import MoveReason, State
from pool.lifecycle import observing, retiring
from pool.lifecycle.deps import Deps
from pool.store import workers


def all_lost(deps: Deps) -> int:
    """End every live row without a pod, and its claim; return how many."""
    standing = {pod.name for pod in deps.driver.list().pods}
    with deps.store.read() as tx:
        rows = [w for w in workers.live(tx) if w.id not in standing]
    for worker in rows:
        if worker.state is State.DRAINING:
            retiring.confirm(deps, worker)
        else:
            observing.lose(deps, worker, deps.by(MoveReason.STOPPED))
    return len(rows)
