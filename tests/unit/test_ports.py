"""Ports that a server of ours finds again when it is started anew."""

from __future__ import annotations

import socket
from pathlib import Path

from pool.ops.up.ports import free_port, is_free


def test_the_kernel_gives_none_of_ours_to_an_outgoing_connection() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(1024 <= free_port() < lowest for _ in range(50))


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        assert not is_free(server.getsockname()[1])


def test_two_who_ask_at_once_get_two() -> None:
    assert len({free_port() for _ in range(50)}) > 45
