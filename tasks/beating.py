"""Beat's scheduler: nothing kept on disk, and a file touched on every turn so that a wedged beat shows."""

from __future__ import annotations

import signal
from typing import Any, NoReturn

import structlog
from celery import platforms
from celery.apps.beat import Beat
from celery.beat import Scheduler

from tasks.reporting import touch

log = structlog.get_logger(__name__)


class NamingBeat(Beat):
    """Beat that says which signal ended it."""

    def install_sync_handler(self, service: Any) -> None:
        def end(signum: int, _frame: Any) -> NoReturn:
            log.info("beat_stopping", signal=signal.Signals(signum).name)
            service.sync()
            raise SystemExit(0)

        platforms.signals.update(SIGTERM=end, SIGINT=end)


class ReportingScheduler(Scheduler):
    """In memory: all entries are due by their period, whenever beat starts."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        touch()
        return float(super().tick(*args, **kwargs))
