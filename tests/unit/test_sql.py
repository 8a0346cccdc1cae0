"""Statements that use the database's clock are compiled once, not each time."""

from __future__ import annotations

from sqlalchemy import select, update

from pool.store.schema import pool, workers
from pool.store.sql import now, plus


def test_statements_that_read_the_clock_are_cached() -> None:
    for statement in (
        select(now()),
        select(workers).where(workers.c.state_since <= plus(now(), -5.0)),
        update(pool).values(canary_at=now(), lane_open_since=plus(now(), pool.c.live)),
    ):
        assert statement._generate_cache_key() is not None
