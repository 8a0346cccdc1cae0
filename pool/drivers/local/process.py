"""Start the process of a pod, and kill what remains of it.

A process writes its identity (`processref.ProcessRef`) before its program runs. So a creator that
dies at any moment leaves no untracked process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from pool.core import names
from pool.drivers.local.processref import ProcessRef, session_members

_PROC = Path("/proc")

# Standard input is the pod's lock. It is released only after the identity is on disk, and the
# program does not inherit it.
_LAUNCH = 'read -r stat < "/proc/$$/stat" && echo "$stat" > "$0" && exec "$@" < /dev/null'


def end_session(leader: ProcessRef, uid: str) -> None:
    """Kill what a pod's process left behind: members of its session that have the pod's uid in
    their environment.
    """
    mark = f"{names.ENV_UID}={uid}".encode()
    for member in session_members(leader.pid):
        with contextlib.suppress(OSError):
            if mark in (_PROC / str(member.pid) / "environ").read_bytes().split(b"\0"):
                member.send(signal.SIGKILL)


def launch(
    argv: Sequence[str], *, env: Mapping[str, str], lock_fd: int, proc_file: Path, log_file: Path
) -> int:
    """Start a program in its own session, with no file of ours except its log. Return its pid.

    The child holds the lock until it has written its identity to `proc_file`.
    """
    with log_file.open("ab") as log:
        child = subprocess.Popen(  # noqa: S603 - running the profile's command is the purpose
            ["/bin/sh", "-c", _LAUNCH, str(proc_file), *argv],
            stdin=lock_fd,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
        )
    # The pod outlives this process, and `Children` reads its exit status. Popen must neither wait
    # nor warn.
    child.returncode = 0
    return child.pid


class Children:
    """The pods started by this process. Reaps them, so that none stays a zombie, and stores how
    each ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exit_files: dict[int, Path] = {}

    def add(self, pid: int, exit_file: Path) -> None:
        with self._lock:
            self._exit_files[pid] = exit_file

    def reap(self) -> None:
        """Write the exit code of each ended process, then reap it. In this order, so that a process
        is never gone without an exit code.
        """
        with self._lock:
            for pid, exit_file in list(self._exit_files.items()):
                try:
                    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                except ChildProcessError:
                    del self._exit_files[pid]
                    continue
                if ended is None:
                    continue
                code = ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
                with contextlib.suppress(OSError):
                    exit_file.write_text(str(code))
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
                del self._exit_files[pid]
