"""Test a service without a pool: `FakePool` and `FakeAsyncPool`.

    from warmpool.testing import FakePool

    pool = FakePool()
    pool.server.refuse("org_cap", retry_after_s=1.0)

They are `Pool` and `AsyncPool` with a server in memory (`FakeServer`) in place of Redis: arguments,
answers, errors and leases are handled by the code that runs in production, and one suite of tests
runs against both. With pytest, the fixtures `fake_pool` and `warmpool_pool` need no import.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from pool.client.aio import AsyncPool
from pool.client.aio_session import AsyncSession
from pool.client.blocking import Pool
from pool.client.calls import PendingCall, Renewal
from pool.client.errors import AnswerOverdue, PoolClosed
from pool.client.fake_server import ENDPOINT, KEY, FakeServer
from pool.client.identity import identity
from pool.client.messages import ReplyMessage
from pool.client.open_call import OpenCall
from pool.client.session import Session

__all__ = ["ENDPOINT", "KEY", "FakeAsyncPool", "FakePool", "FakeServer"]

_URL = "redis://fake.invalid"


class FakePool(Pool):
    """A `Pool` whose server is in memory: `server` is what a test gives orders to."""

    def __init__(
        self, server: FakeServer | None = None, *, name: str | None = None, org_key: str | None = None
    ) -> None:
        self.server = server or FakeServer()
        super().__init__(_URL, name=name, org_key=org_key)

    def _new_session(self) -> Session:
        return _FakeSession(self.server)


class FakeAsyncPool(AsyncPool):
    """An `AsyncPool` whose server is in memory."""

    def __init__(
        self, server: FakeServer | None = None, *, name: str | None = None, org_key: str | None = None
    ) -> None:
        self.server = server or FakeServer()
        super().__init__(_URL, name=name, org_key=org_key)

    def _new_session(self) -> AsyncSession:
        return _FakeAsyncSession(self.server)


class _FakeSession(Session):
    """A session without threads and connections. What it waits for is in this process."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(_URL, identity("fake"))
        self._server = server
        server.listen(self._learn)

    def notify(self, unawaited: list[PendingCall]) -> None:
        for call in unawaited:
            with contextlib.suppress(Exception):
                self._server.answer(call)

    def close(self) -> None:
        self.notify(self.core.close())
        with contextlib.suppress(ValueError):  # closed before
            self._server.forget(self._learn)

    def _start(self) -> None:
        pass

    def _send(self, together: list[OpenCall], publish: Callable[..., None]) -> None:
        """Nothing is sent before `_answer_to`."""

    def _answer_to(self, open_call: OpenCall, answered: threading.Event) -> object:
        call = open_call.call
        self.core.sending(open_call)
        open_call.sent(self.now())
        delay_s = self._server.delay_of(call)
        if delay_s and answered.wait(min(delay_s, call.patience_s)):
            raise PoolClosed
        if delay_s > call.patience_s:
            raise _overdue(call)
        result = self._server.answer(call, answered.set)
        if result is None:
            answered.wait(_wait_s(call))
            if open_call.closed:
                raise PoolClosed
            result = self._server.settle(call)
        open_call.answer = _reply(open_call, result)
        return result

    def _learn(self, news: Renewal) -> None:
        self.core.leases.learn(news)


class _FakeAsyncSession(AsyncSession):
    """The same for asyncio."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(_URL, identity("fake"))
        self._server = server
        server.listen(self._learn)

    def notify(self, unawaited: list[PendingCall]) -> None:
        for call in unawaited:
            with contextlib.suppress(Exception):
                self._server.answer(call)

    async def close(self) -> None:
        self._closed = True
        self.notify(self.core.close())
        with contextlib.suppress(ValueError):
            self._server.forget(self._learn)

    def _start(self) -> None:
        pass

    async def _send(self, together: list[OpenCall]) -> None:
        """Nothing is sent before `_answer_to`."""

    async def _answer_to(self, open_call: OpenCall, answered: asyncio.Event) -> object:
        call = open_call.call
        self.core.sending(open_call)
        open_call.sent(self.now())
        delay_s = self._server.delay_of(call)
        if delay_s and await _set_within(answered, min(delay_s, call.patience_s)):
            raise PoolClosed
        if delay_s > call.patience_s:
            raise _overdue(call)
        result = self._server.answer(call, partial(self._loop.call_soon_threadsafe, answered.set))
        if result is None:
            await _set_within(answered, _wait_s(call))
            if open_call.closed:
                raise PoolClosed
            result = self._server.settle(call)
        open_call.answer = _reply(open_call, result)
        return result

    def _learn(self, news: Renewal) -> None:
        # Events of asyncio may be set only in their loop.
        if not self._loop.is_closed():
            try:
                here = asyncio.get_running_loop() is self._loop
            except RuntimeError:
                here = False
            if here:
                self.core.leases.learn(news)
            else:
                self._loop.call_soon_threadsafe(self.core.leases.learn, news)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _wait_s(call: PendingCall) -> float:
    wait_s = call.kwargs.get("wait_s")
    return float(wait_s) if isinstance(wait_s, int | float) else 0.0


def _reply(open_call: OpenCall, result: object) -> ReplyMessage:
    return ReplyMessage(task_id=open_call.message.task_id, status="SUCCESS", result=result)


def _overdue(call: PendingCall) -> AnswerOverdue:
    return AnswerOverdue(f"no answer to {call.task} within {call.patience_s:g} s")
