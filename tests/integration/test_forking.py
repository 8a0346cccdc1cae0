"""Processes that tests start by forking behave like those from a command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pool.drivers.local.processref import ProcessRef
from tests.support import forking
from tests.support.forking import ROOT
from tests.support.waiting import eventually

MAKES_A_SERVER = "from tests.support.forking import ForkServer; print(ForkServer().pid, flush=True); input()"


def without_database(folder: Path) -> dict[str, str]:
    """An environment whose database refuses connections."""
    return {
        **os.environ,
        "WARMPOOL_DATA_DIR": str(folder),
        "WARMPOOL_BROKER_URL": "redis://127.0.0.1:1/0",
        "WARMPOOL_DATABASE_URL": "postgresql://user@127.0.0.1:1/none",
    }


@pytest.mark.parametrize(
    "words",
    [("--version",), ("config", "check"), ("worker", "nonsense"), ("worker", "bind"), ("migrate",)],
    ids=" ".join,
)
def test_forked_command_prints_and_ends_as_one_from_the_command_line(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    forked = forking.run(words, env=without_database(tmp_path), cwd=tmp_path)

    argv = [sys.executable, "-m", "pool.ops.cli", *words]
    real = subprocess.run(argv, cwd=ROOT, env=without_database(tmp_path), capture_output=True, text=True)
    assert (forked.returncode, forked.stdout, forked.stderr) == (real.returncode, real.stdout, real.stderr)
    assert forked.stdout or forked.stderr


def test_forked_process_that_is_killed_reports_its_signal(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        waits = forking.start(
            ["migrate", "--wait", "60"], env=without_database(tmp_path), cwd=tmp_path, log=log.fileno()
        )
    assert waits.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        waits.wait(0.01)
    os.kill(waits.pid, signal.SIGKILL)
    assert waits.wait(30) == -signal.SIGKILL
    assert waits.poll() == -signal.SIGKILL


def test_fork_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKES_A_SERVER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        server = ProcessRef.of(int(owner.stdout.readline()))
        assert server is not None
        owner.kill()
    eventually(lambda: not server.alive(), within_s=30)
