"""The namespaces of a node leave this machine as it was. This file runs before those whose tests are in a
node's network.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from tests.support.node_space import ADDRESS, NodeSpace
from tests.support.waiting import eventually

SETTING = Path("/proc/sys/vm/overcommit_memory")


def links() -> str:
    return subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True).stdout


def test_one_kill_ends_a_node_and_nothing_of_it_is_left(pause: Path) -> None:
    before, setting = links(), SETTING.read_text()
    with NodeSpace(pause) as space:
        running = space.start(["sleep", "infinity"], log=space.root / "log")
        space.run("mount", "-t", "tmpfs", "inside", "/mnt")
        space.run("sh", "-c", f"echo 1 >{SETTING}")
        (space.cgroups()[0] / "pod").mkdir()
        with space.network():
            assert ADDRESS in links()
        assert links() == before
        assert space.left()
        os.kill(space.first, signal.SIGKILL)
        eventually(lambda: running.poll() is not None)
        space.first = 0
    assert space.left() == []
    assert links() == before
    assert SETTING.read_text() == setting
