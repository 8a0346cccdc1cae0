"""Beat's scheduler: nothing kept on disk, no look at the wall clock, and a file touched on every turn so that a wedged beat shows."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import structlog
from celery import platforms
from celery.apps.beat import Beat
from celery.beat import Scheduler

from beat_schedule import beat_schedule
from pool.core.clock import SystemClock
from tasks.worker import ticks
from tasks.worker.probefiles import touch

log = structlog.get_logger(__name__)

# So often at least the file is touched.
_LONGEST_TURN_S = 2.0


class NamingBeat(Beat):
    """Beat that says which signal ended it."""

    def install_sync_handler(self, service: Any) -> None:
        def end(signum: int, _frame: Any) -> NoReturn:
            log.info("beat_stopping", signal=signal.Signals(signum).name)
            service.sync()
            raise SystemExit(0)

        platforms.signals.update(SIGTERM=end, SIGINT=end)


class ReportingScheduler(Scheduler):
    """In memory, by this host's monotonic clock. Every entry is due when beat starts, and then once a period: the table knows if a pass ran just
    now. A clock that is wrong, or is put right, changes nothing."""

    app: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._clock = SystemClock()
        self._due_s: dict[str, float] = {}
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:  # noqa: ARG002
        """Send what is due; how long until the next is."""
        self._touch_if_well()
        now_s = self._clock.monotonic()
        for name, entry in self.schedule.items():
            if self._due_s.get(name, now_s) <= now_s:
                # From when it was sent, not from when it was due: what was missed is not made up for.
                self._due_s[name] = now_s + beat_schedule[name]["schedule"]
                self._touch_if_well()  # each may take its time while the broker is away
                self.apply_entry(entry, producer=self.producer)
        next_s = min(self._due_s.values(), default=now_s) - self._clock.monotonic()
        return max(0.0, min(next_s, _LONGEST_TURN_S))

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """With the broker's time in it, from which its age is told."""
        entry.options = {
            **entry.options,
            "headers": {ticks.HEADER: ticks.broker_time_s(self.app.backend)},
        }
        sent = super().apply_async(entry, *args, **kwargs)
        self.app.beat_metrics.beat_ticks.labels(str(entry.task).removeprefix("pool.")).inc()
        return sent

    def _ensure_connected(self) -> Any:
        """Beat stands here while the broker is away; it says so instead of falling silent, since a restart would not help."""

        def away(exc: Exception, interval_s: float) -> None:
            log.warning("broker_away", cause=str(exc), again_in_s=interval_s)
            self._touch_if_well()

        return self.connection.ensure_connection(away, self.app.conf.broker_connection_max_retries)

    def _touch_if_well(self) -> None:
        if not self.app.watched.unwell():
            touch()
