"""Ports of the loopback for servers of ours, which come back on the port that they had.

The kernel gives ports of its own range to outgoing connections. A server whose port is from there may find it taken when it is
started again, and a client that calls it meanwhile may be connected with itself. So ours are below that range.
"""

from __future__ import annotations

import socket
from pathlib import Path

from pool.ids import RandomIds

_HOST = "127.0.0.1"
_LOWEST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    return _bound(port) is not None


def free_port() -> int:
    """One that nobody listens on; two who ask at the same time get two different ones, but for bad luck."""
    below = _lowest_of_the_kernels()
    for _ in range(_TRIES if below > _LOWEST else 0):
        port = _LOWEST + int(RandomIds().token(), 16) % (below - _LOWEST)
        if is_free(port):
            return port
    return _bound(0) or 0


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
