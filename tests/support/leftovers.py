"""All files of a test run are under one folder, so that processes that a test leaves running can be
found, reported and ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.drivers.local.processref import ProcessRef
from tests.support.waiting import eventually

# Processes end within this time after a signal.
_ENDING_S = 10.0


class TestFolder:
    """The folder, from the start of the run to its end. A process of the run names it in its
    command line, environment or working directory.
    """

    def __init__(self) -> None:
        # Short, because it contains sockets; searchable by all, because Postgres runs as another
        # user if the tests run as root.
        self._root = Path(tempfile.mkdtemp(prefix="wpt-", dir="/tmp"))
        self._root.chmod(0o711)
        os.environ["TMPDIR"] = str(self._root)
        tempfile.tempdir = None

    def clear(self) -> dict[int, str]:
        """End and report the processes that still run there, and remove the folder."""
        try:
            eventually(lambda: not processes_about(self._root), within_s=_ENDING_S, every_s=0.2)
            left = {}
        except AssertionError:
            left = processes_about(self._root)
        for pid in left:
            if ref := ProcessRef.of(pid):
                ref.send(signal.SIGKILL)
        shutil.rmtree(self._root, ignore_errors=True)
        return left


class LeftoverWatch:
    """A pytest plugin of the controlling process: the run fails if processes are left behind."""

    def __init__(self, ground: TestFolder) -> None:
        self._ground = ground

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        try:
            yield
        finally:
            left = self._ground.clear()
            for pid, command in left.items():
                sys.stderr.write(f"left running by a test, and ended: {pid} {command}\n")
            if left and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED


def processes_about(folder: Path) -> dict[int, str]:
    """Return live processes whose command line, environment or working directory names a folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            about = words + (entry / "environ").read_bytes() + os.fsencode((entry / "cwd").readlink())
        except OSError:
            continue
        if os.fsencode(folder) in about:
            found[int(entry.name)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return found
