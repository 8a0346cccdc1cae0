"""How long a process waits for a row that another transaction has locked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from pool import wiring
from pool.core.settings import PoolSettings, Settings
from tests.support.postgres_server import PostgresServer


@pytest.mark.parametrize(("role", "wait"), [("acquire", "2s"), ("fleet", "10s")])
def test_shared_threads_wait_for_a_lock_for_a_part_of_their_time(
    role: str, wait: str, postgres: PostgresServer, postgres_template: str, tmp_path: Path
) -> None:
    url = postgres.create_database(f"waits_{role}", template=postgres_template)
    pool = PoolSettings(data_dir=str(tmp_path), database_url=url, broker_url="redis://127.0.0.1:1/0")
    deps = wiring.build(replace(Settings(), pool=pool), broker=wiring.DroppingBroker(), role=role)
    try:
        with deps.store.read() as tx:
            assert tx.execute(text("SHOW lock_timeout")).scalar_one() == wait
    finally:
        deps.close()
