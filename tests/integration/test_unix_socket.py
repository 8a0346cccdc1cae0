"""A whole pool whose broker is a Unix socket."""

from __future__ import annotations

from pathlib import Path

import pytest

from pool.client import Pool
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.standing import passes_go_on
from tests.support.system import EVERYTHING, System

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("form", ["unix://{path}?db=1", "redis+socket://{path}?virtual_host=1"])
def test_pool_works_on_a_unix_socket(tmp_path: Path, postgres: PostgresServer, form: str) -> None:
    socket = tmp_path / "redis.sock"
    url = form.format(path=socket)
    system = System(
        tmp_path / "pool",
        postgres.create_database(f"socket_{form[0]}"),
        settings={"profiles": {"default": {"warm_target": 1}}},
        redis=RedisServer(more={"unixsocket": str(socket)}),
        broker_url=url,
    )
    with system:
        system.run(*EVERYTHING).wait_idle(1)
        with Pool(url) as pool, pool.acquire("acme", wait_s=30) as worker:
            assert worker.claim_id
        assert "granted" in system.command("acquire", "--org", "acme", "--wait", "30", "--json")
        passes_go_on(system)
