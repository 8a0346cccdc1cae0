"""Run a command as process 1 of its own PID namespace, as a container runtime does. The kernel drops
signals that process 1 has no handler for.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import pytest

from tests.support.waiting import eventually

# Without root, a user namespace gives the right to make the other one.
_UNSHARE = ("unshare", *(() if os.getuid() == 0 else ("--user", "--map-root-user")), "--pid", "--fork")
UNSHARE = (*_UNSHARE, "--kill-child")


def require_namespaces() -> None:
    """Skip the test where PID namespaces cannot be made; in CI, fail it."""
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
        problem = done.stderr if done.returncode else ""
    except OSError as exc:
        problem = str(exc)
    if problem:
        sentence = f"PID namespaces cannot be made here: {problem}"
        pytest.fail(sentence) if os.environ.get("CI") else pytest.skip(sentence)


class FirstProcess:
    """A process 1 with its descendants. They end with the block."""

    def __init__(self, words: list[str], env: Mapping[str, str], log: Path) -> None:
        self._words, self._env, self._log = words, env, log

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._outer = subprocess.Popen(
                [*UNSHARE, *self._words], env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.pid = eventually(lambda: children(self._outer.pid))[0]
        # It runs `unshare` until it has become the command.
        eventually(lambda: _first_word(self.pid) != _UNSHARE[0])
        if Path(self._words[0]).name == "warmpool-init":
            eventually(lambda: _first_word(self.pid) == "timeout" and children(self.pid))
        return self

    def __exit__(self, *_: object) -> None:
        self._outer.kill()
        self._outer.wait()

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def exit_code(self, *, within_s: float) -> int:
        """Wait for the end; 128 plus the signal, as container runtimes report it."""
        code = self._outer.wait(timeout=within_s)
        return code if code >= 0 else 128 - code

    def log(self) -> str:
        return self._log.read_text(errors="replace")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _first_word(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
