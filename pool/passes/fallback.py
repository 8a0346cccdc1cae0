"""The fallback: every fleet worker runs the reap itself while the pass `reap` is dark.

It needs neither beat nor Redis nor the lock. It never ends a lease, because callers may be unable
to renew.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pool.core.ids import ProfileName, WorkerId
from pool.core.periods import PERIODS_S
from pool.core.records import ReplyTo
from pool.lifecycle import item_errors, retiring
from pool.lifecycle.deps import Broker, Deps
from pool.passes import reap
from pool.passes.running import Interrupted, Run, log
from pool.store import passes

SILENT_PERIODS = 3


def watch_over(deps: Deps, stop: threading.Event) -> None:
    """Check once per period, and reap here while the pass `reap` is dark.

    Starts after three periods, so that a pool that has just started can run its passes first.
    """
    deps.clock.wait(stop, SILENT_PERIODS * PERIODS_S["reap"])
    while not deps.clock.wait(stop, PERIODS_S["reap"]):
        try:
            reap_if_dark(deps, stop)
        except Interrupted:
            return
        except Exception as exc:  # noqa: BLE001 - the next period is the next try
            log.warning("fallback_failed", cause=item_errors.cause_of(exc))


def reap_if_dark(deps: Deps, stop: threading.Event) -> bool:
    """Run the reap without lease expiry. It records no success, so that the pass stays visibly dark."""
    with deps.store.read() as tx:
        dark = passes.silent_for(tx, "reap", SILENT_PERIODS * PERIODS_S["reap"])
    deps.metrics.fallback_active.set(1 if dark else 0)
    if not dark:
        return False
    deps.metrics.fallback_runs.inc()
    here = replace(deps, broker=InlineRetireBroker(deps))
    run = Run(deps=here, name="reap", still_ours=lambda: not stop.is_set())
    reap.without_expiry(run)
    log.warning("fallback_reaped", **{k: v for k, v in run.actions.items() if v})
    return True


class InlineRetireBroker:
    """A broker that does not need Redis: it deletes pods in this process and drops other tasks,
    which a pass sends again.
    """

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._broker: Broker = deps.broker

    def send(self, task: str, **arguments: Any) -> None:
        if task != "pool.retire":
            return
        worker_id = WorkerId(arguments["worker_id"])
        try:
            retiring.retire(self._deps, worker_id)
        except Exception as exc:  # noqa: BLE001 - it stays draining, and the others are retired
            log.warning("fallback_retire_failed", worker=worker_id, cause=item_errors.cause_of(exc))

    def send_later(self, task: str, **arguments: Any) -> None:
        """Drop the message: the fallback spawns nothing."""

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        self._broker.reply(to, answer)

    def nudge(self, profile: ProfileName) -> None:
        """Drop the request: the reconcile pass refills."""
