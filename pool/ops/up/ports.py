"""Loopback ports for our servers, which keep their port over restarts.

The kernel uses its local port range for outgoing connections. A server with a port in this range
may find it taken after a restart, and a client that connects meanwhile may be connected to itself.
So our ports are below this range.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from pathlib import Path

from pool.core.ids import RandomIds

_HOST = "127.0.0.1"
_LOWEST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200
# File descriptors of sockets whose names show other processes that a port is chosen, although no server
# listens on it yet. The kernel frees a name when its process ends.
_claims: deque[int] = deque(maxlen=64)


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    return _bound(port) is not None


def free_port() -> int:
    """Return a random free port that no other process on this machine has just chosen."""
    below = _lowest_of_the_kernels()
    for _ in range(_TRIES if below > _LOWEST else 0):
        port = _LOWEST + int(RandomIds().token(), 16) % (below - _LOWEST)
        if is_free(port) and _claim(port):
            return port
    return _bound(0) or 0


def _claim(port: int) -> bool:
    """Return whether this process is the first that chose the port."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        # An abstract name: no file, and gone with the process.
        claim.bind(f"\0warmpool-port-{port}")
    except OSError:
        claim.close()
        return False
    if len(_claims) == _claims.maxlen:
        os.close(_claims.popleft())
    _claims.append(claim.detach())
    return True


def _lowest_of_the_kernels() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bound(port: int) -> int | None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
