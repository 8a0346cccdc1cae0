"""Drain on SIGTERM: refuse new sessions, wait for the open ones, then let the server stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from types import FrameType

from pool.core.worker_state import WorkerState

log = logging.getLogger("warmpool.worker")


class Draining:
    """Delays SIGTERM for the HTTP server of this process until the worker is unused."""

    def __init__(self, state: WorkerState, grace_s: float) -> None:
        self._state = state
        self._grace_s = grace_s
        # Only the handler sets it, so that the handler never waits for a lock of the thread that it
        # interrupts.
        self._asked = threading.Event()
        self._before: object = signal.SIG_DFL

    def install(self) -> bool:
        """Handle SIGTERM before the handler that is installed now. Return False outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            log.warning("drain_not_installed: signals can be handled only by the main thread")
            return False
        if signal.getsignal(signal.SIGTERM) == self._received:
            return True
        self._before = signal.signal(signal.SIGTERM, self._received)
        threading.Thread(target=self._drain, name="warmpool-draining", daemon=True).start()
        return True

    def _received(self, number: int, frame: FrameType | None) -> None:
        # The second SIGTERM comes from the thread below, or from someone who does not want to wait.
        if not self._asked.is_set():
            self._asked.set()
        elif callable(self._before):
            self._before(number, frame)
        elif self._before != signal.SIG_IGN:
            # The default action would do nothing in process 1 of a container.
            sys.exit(0)

    def _drain(self) -> None:
        self._asked.wait()
        self._state.drain()
        if not self._state.wait_unused(self._grace_s):
            log.warning("grace_period_ended: sessions are still open after %.0f s", self._grace_s)
        os.kill(os.getpid(), signal.SIGTERM)
