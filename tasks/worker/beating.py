"""Beat's scheduler. It keeps nothing on disk, does not use the wall clock, and touches a file on
every turn, so that a stuck beat is visible.
"""

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
from tasks.worker.reconnecting import SOON, OnceLogged

log = structlog.get_logger(__name__)

# The longest interval between two touches of the file.
_LONGEST_TURN_S = 2.0


class NamingBeat(Beat):
    """A beat that logs the signal that ended it."""

    def install_sync_handler(self, service: Any) -> None:
        def end(signum: int, _frame: Any) -> NoReturn:
            log.info("beat_stopping", signal=signal.Signals(signum).name)
            service.sync()
            raise SystemExit(0)

        platforms.signals.update(SIGTERM=end, SIGINT=end)


class ReportingScheduler(Scheduler):
    """A scheduler in memory, by this host's monotonic clock.

    Every entry is due when beat starts, then once per period; the table shows whether a pass has
    just run. A wrong clock, or a change of the clock, has no effect.
    """

    app: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._clock = SystemClock()
        self._due_s: dict[str, float] = {}
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:  # noqa: ARG002
        """Send the ticks that are due. Return the seconds until the next one."""
        self._touch_if_healthy()
        now_s = self._clock.monotonic()
        for name, entry in self.schedule.items():
            if self._due_s.get(name, now_s) <= now_s:
                # From the time it was sent, not the time it was due: missed ticks are not sent
                # later.
                self._due_s[name] = now_s + beat_schedule[name]["schedule"]
                self._touch_if_healthy()  # each may take long while the broker is down
                self.apply_entry(entry, producer=self.producer)
        next_s = min(self._due_s.values(), default=now_s) - self._clock.monotonic()
        return max(0.0, min(next_s, _LONGEST_TURN_S))

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the broker's time, from which the age of the tick is computed."""
        entry.options = {
            **entry.options,
            "headers": {ticks.HEADER: ticks.broker_time_s(self.app.backend)},
        }
        sent = super().apply_async(entry, *args, **kwargs)
        self.app.beat_metrics.beat_ticks.labels(str(entry.task).removeprefix("pool.")).inc()
        return sent

    def _ensure_connected(self) -> Any:
        """Connect to the broker. While it is down, beat waits here; it stays alive, because a
        restart would not help.
        """
        return self.connection.ensure_connection(OnceLogged(log, self._touch_if_healthy), **SOON)

    def _touch_if_healthy(self) -> None:
        if not self.app.watched.unwell():
            touch()
