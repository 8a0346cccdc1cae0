"""Ports that a restarted test server gets again."""

from __future__ import annotations

import socket
from pathlib import Path

from pool.ops.up.ports import free_port, is_free


def test_ports_are_outside_the_ephemeral_range() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 <= free_port() < lowest for _ in range(50))


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


def test_two_concurrent_requests_get_two_ports() -> None:
    assert len({free_port() for _ in range(50)}) > 45
