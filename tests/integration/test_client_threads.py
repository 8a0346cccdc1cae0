"""The client's two loops, the reader and the renewer, are restarted when they fail: claims stay
renewed.
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pool.client import AsyncPool, Pool
from tests.support.redis_server import RedisServer
from tests.support.standin_pool import StandIn
from tests.support.waiting import eventually

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def service() -> Iterator[StandIn]:
    with RedisServer() as running, StandIn(running.url) as answering:
        yield answering


class ReaderCrash(BaseException):
    """No code catches it by name."""


def kill(name: str) -> None:
    ident = next(t.ident for t in threading.enumerate() if t.name == name)
    assert ident is not None
    assert (
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(ReaderCrash)) == 1
    )


@pytest.mark.parametrize("thread", ["warmpool-client_renew", "warmpool-client_read"])
def test_killed_client_thread_is_restarted(
    service: StandIn, thread: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = Pool(service.url)
    try:
        pool.acquire("acme", lease_s=5)
        kill(thread)
        eventually(lambda: f"thread_restarted thread={thread}" in caplog.text, within_s=LIMIT_S)
        before = len(service.ran("pool.renew"))
        eventually(lambda: len(service.ran("pool.renew")) > before + 1, within_s=LIMIT_S)
        assert any(t.name == thread for t in threading.enumerate())
    finally:
        pool.close()
    eventually(lambda: all(t.name != thread for t in threading.enumerate()))


def test_failed_asyncio_task_is_restarted(service: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    async def hold() -> None:
        async with AsyncPool(service.url) as pool:
            await pool.acquire("acme", lease_s=5)
            core = pool._session().core
            real, failures = core.renewed, [ValueError("a bug")]

            def renewed(result: object) -> None:
                if failures:
                    raise failures.pop()
                real(result)

            core.renewed = renewed  # type: ignore[method-assign]
            before = len(service.ran("pool.renew"))
            await asyncio.to_thread(
                eventually, lambda: len(service.ran("pool.renew")) > before + 1, within_s=LIMIT_S
            )

    asyncio.run(hold())
    told: Any = [record for record in caplog.records if "task_restarted" in record.message]
    assert len(told) == 1
