"""Calls that wait for a lock of another transaction: run in their own thread, and checked to be
blocked before the test continues.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from sqlalchemy import text

from pool.store import Store
from tests.support.waiting import eventually

T = TypeVar("T")


def aside(call: Callable[[], T]) -> Future[T]:
    """Run it in its own thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001 - the test asks for it
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return future


def blocked(store: Store) -> int:
    """Return how many sessions of this database wait for a lock."""
    statement = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    )
    with store.read() as tx:
        return int(tx.execute(statement).scalar_one())


def is_blocked(store: Store, future: Future[Any], sessions: int = 1) -> None:
    """Return once the call waits for a lock of another transaction; fail if it completes instead."""
    eventually(lambda: future.done() or blocked(store) == sessions)
    assert not future.done(), f"it was not blocked: {future.exception() or future.result()}"
