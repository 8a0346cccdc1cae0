"""The liveness probe of a worker checks whether the database is the cause."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.core.settings import PoolSettings, Settings
from pool.ops.up.ports import free_port
from tasks.worker import liveness
from tasks.worker.liveness import others_answer
from tests.support.postgres_server import PostgresServer


def test_unreachable_database_excuses_a_stuck_thread(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"postgresql://user@127.0.0.1:{free_port()}/none"
    settings = Settings(pool=replace(PoolSettings(), database_url=away, call_timeout_s=2))
    monkeypatch.setattr(liveness, "_broker_answers", lambda _: True)
    assert not others_answer(settings)
    here = replace(settings.pool, database_url=postgres.url())
    assert others_answer(replace(settings, pool=here))
