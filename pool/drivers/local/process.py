"""Processes: who one is, whether it lives, how it is started, told and ended.

A pid alone names nobody, since the kernel gives it out again; with the start time beside it, it does. A process writes
its own identity before its program runs, so a creator that dies at any moment leaves no process that nobody knows.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pool.drivers.local import contract

_PROC = Path("/proc")
_DEAD = "ZXx"
# Fields of /proc/<pid>/stat, counted from the one after the command's name.
_STATE, _STARTED, _EXIT_STATUS = 0, 19, 49

# Standard input is the pod's lock: it is let go only when the identity is on disk, and the program does not get it.
_LAUNCH = 'read -r stat < "/proc/$$/stat" && echo "$stat" > "$0" && exec "$@" < /dev/null'


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One process of this boot, never another."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stat:
    identity: Identity
    state: str
    exit_status: int


def boot_s() -> float:
    """Seconds since the machine started: one clock for all its processes, which setting the time does not move."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Which start of the machine this is; pids and `boot_s` mean nothing in another."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def identity_of(stat: str) -> Identity | None:
    """The identity in a line as /proc/<pid>/stat has it."""
    parsed = _parse(stat)
    return parsed.identity if parsed else None


def alive(identity: Identity) -> bool:
    """Whether that very process runs; a zombie does not."""
    stat = _stat(identity.pid)
    return stat is not None and stat.identity == identity and stat.state not in _DEAD


def exit_code_of_zombie(identity: Identity) -> int | None:
    """How it ended, as long as its parent has not asked."""
    stat = _stat(identity.pid)
    if stat is None or stat.identity != identity or stat.state not in _DEAD:
        return None
    code = os.waitstatus_to_exitcode(stat.exit_status)
    return code if code >= 0 else 128 - code


def tell(identity: Identity, signum: signal.Signals) -> None:
    """Send a signal to that very process, or to nobody."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return
    try:
        # The handle is of whoever had the pid when it was opened; only now does comparing mean something.
        if alive(identity):
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def end_session(identity: Identity, uid: str) -> None:
    """Kill what a pod's process has left behind: members of its session that carry the pod's uid."""
    mark = f"{contract.UID}={uid}".encode()
    for pid in _members(identity.pid):
        stat = _stat(pid)
        with contextlib.suppress(OSError):
            if stat and mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                tell(stat.identity, signal.SIGKILL)


def launch(
    argv: Sequence[str], *, env: Mapping[str, str], lock_fd: int, proc_file: Path, log_file: Path
) -> int:
    """Start a program in a session of its own, with no file of ours but its log. The lock passes to the child until it has
    written its identity to `proc_file`. Returns its pid."""
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
    # The pod outlives us, and `Children` asks how it ended; Popen should do neither wait nor warn.
    child.returncode = 0
    return child.pid


class Children:
    """The pods that this process has started, so that none stays a zombie and how each ended is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exit_files: dict[int, Path] = {}

    def add(self, pid: int, exit_file: Path) -> None:
        with self._lock:
            self._exit_files[pid] = exit_file

    def reap(self) -> None:
        """Write down how each that has ended did, then let it go; in this order, so that nobody sees it gone unexplained."""
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


def _members(session: int) -> Iterator[int]:
    for pid in [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]:
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                yield pid


def _stat(pid: int) -> _Stat | None:
    try:
        return _parse((_PROC / str(pid) / "stat").read_text())
    except OSError:
        return None


def _parse(stat: str) -> _Stat | None:
    # The command's name may hold blanks and brackets; the last bracket closes it.
    head, bracket, tail = stat.rpartition(")")
    fields = tail.split()
    if not bracket or len(fields) <= _EXIT_STATUS:
        return None
    identity = Identity(pid=int(head.split(" ", 1)[0]), started=int(fields[_STARTED]))
    return _Stat(identity=identity, state=fields[_STATE], exit_status=int(fields[_EXIT_STATUS]))
