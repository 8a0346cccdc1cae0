"""Processes that end with the process that started them, also if that is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TIED = shutil.which("setpriv")


class ServerProcesses:
    """Starts processes and ends all of them."""

    def __init__(self) -> None:
        # Linux ends a tied child with the thread that started it, so one thread starts them all and
        # outlives them.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="children")
        self._running: set[subprocess.Popen[bytes]] = set()

    def start(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one, with its output in the log."""
        return self._starter.submit(self._start, argv, log, env).result()

    def _start(
        self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        tied = [_TIED, "--pdeathsig", "KILL", "--", *argv] if _TIED else list(argv)
        with log.open("ab") as output:
            child = subprocess.Popen(
                tied, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=log.parent
            )
        self._running.add(child)
        return child

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill one as in a crash."""
        child.kill()
        child.wait()
        self._running.discard(child)

    def forget(self, child: subprocess.Popen[bytes]) -> None:
        """Record that it has ended by itself."""
        self._running.discard(child)

    def close(self) -> None:
        """End all."""
        for child in tuple(self._running):
            self.kill(child)
        self._starter.shutdown()
