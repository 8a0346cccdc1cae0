"""One event loop's use of a pool: its connections and its two tasks, the reader and the renewer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from pool.client.asking import Ask, GiveUp, Pace, Send, Wait
from pool.client.calls import PendingCall
from pool.client.core import Core, log
from pool.client.credentials import KeySource, Signer
from pool.client.ear import BLOCK_S, READ_TIMEOUT_S
from pool.client.errors import BrokerDown, PoolClosed
from pool.client.identity import Identity
from pool.client.link import PUBLISH_TIMEOUT_S, broken, host_s, options, redacted
from pool.core.clock import Clock, SystemClock
from pool.core.errors import PoolError

T = TypeVar("T")


class AsyncLink:
    """The asyncio twin of `Link`. Whatever goes wrong is `BrokerDown`."""

    def __init__(self, url: str, identity: Identity) -> None:
        from redis import RedisError
        from redis import asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import NoPermissionError

        self._errors = (RedisError, OSError)
        self._where = redacted(url)
        self._reply_to = identity.reply_to
        self._queue = identity.queue
        self._no_right = NoPermissionError

        def client(retries: int) -> redis.Redis:
            made = redis.Redis.from_url(url, retry=Retry(NoBackoff(), retries), **options(identity))
            # Timeouts are ours: redis-py's go through asyncio.wait_for, which on Python 3.11 may swallow a cancellation.
            made.connection_pool.connection_kwargs["socket_timeout"] = None
            return made

        self._writer = client(1)
        self._reader = client(0)

    async def publish(self, *messages: str) -> None:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._writer.lpush(self._queue, *messages)
        except self._errors as exc:
            raise broken(f"publish to {self._where}", exc) from exc

    async def time_s(self) -> float:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                seconds, microseconds = await self._writer.time()
        except self._no_right:
            return host_s()
        except self._errors as exc:
            raise broken(f"ask {self._where} for its time", exc) from exc
        return seconds + microseconds / 1e6

    async def next_answer(self) -> bytes | None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                popped = await cast(
                    "Awaitable[list[bytes] | None]", self._reader.blpop([self._reply_to], timeout=BLOCK_S)
                )
        except self._errors as exc:
            raise broken(f"read answers from {self._where}", exc) from exc
        return popped[1] if popped else None

    async def close(self) -> None:
        await self._writer.aclose()
        await self._reader.aclose()


class AsyncSession:
    """Carries out what `Core` decides, in the loop that it was made in."""

    def __init__(self, url: str, identity: Identity, source: KeySource | None = None) -> None:
        self._sooner = asyncio.Event()
        self._clock: Clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._link = AsyncLink(url, identity)
        self._loops: list[asyncio.Task[None]] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._closed = False
        signer = None if source is None else Signer(source, self._clock)
        self.core = Core(identity, Pace(), sooner=self._sooner, signer=signer)

    def is_here(self) -> bool:
        """Whether it belongs to the running loop of this process."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    def now(self) -> float:
        return self._clock.monotonic()

    async def ask(self, call: PendingCall, take: Callable[[object], T]) -> T:
        """Send, wait, and hand the result to `take`. Whoever leaves before that leaves nothing behind."""
        self._start()
        answered = asyncio.Event()
        ask = self.core.ask(call, answered, self.now())
        try:
            taken = take(await self._converse(ask, answered))
        except BaseException:
            self.tell(self.core.abandon(ask, self.now()))
            raise
        self.core.finish(ask)
        return taken

    def tell(self, told: list[PendingCall]) -> None:
        """Send without waiting for answers, nor for the sending: whoever tells may be a task that is being cancelled."""
        if told and not self._loop.is_closed():
            task = self._loop.create_task(self._tell(told))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def close(self) -> None:
        """Stop both tasks; release what is still held, at best."""
        self._closed = True
        for task in self._loops:
            task.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._wind_up()

    async def _wind_up(self) -> None:
        self._closed = True
        self.tell(self.core.close())
        await asyncio.gather(*self._telling, return_exceptions=True)
        await self._link.close()

    async def _converse(self, ask: Ask, answered: asyncio.Event) -> object:
        while ask.answer is None:
            match ask.step(self.now()):
                case Send():
                    await self._send(ask)
                case Wait(seconds):
                    await _wait(answered, seconds)
                case GiveUp(error):
                    raise error
        return ask.answer.value()

    async def _send(self, ask: Ask) -> None:
        try:
            await self._learn_time()
        except BrokerDown as error:
            ask.held_up(self.now(), error)
            return
        try:
            await self._link.publish(self.core.sending(ask))
        except BrokerDown as error:
            ask.unsent(self.now(), error)
        else:
            ask.sent(self.now())

    async def _tell(self, told: list[PendingCall]) -> None:
        try:
            await self._learn_time()
            await self._link.publish(*self.core.notes(told))
        except BrokerDown as error:
            log.warning("not_told tasks=%s error=%s", sorted({call.task for call in told}), error)

    async def _learn_time(self) -> None:
        signer = self.core.signer
        if signer is not None and signer.is_due():
            signer.learn(await self._link.time_s())

    def _start(self) -> None:
        if self._closed:
            raise PoolClosed
        if not self._loops:
            self._loops = [
                self._loop.create_task(self._read()),
                self._loop.create_task(self._keep(self._renew)),
            ]

    async def _read(self) -> None:
        try:
            await self._keep(self._read_on)
        finally:
            # Cancelled by the loop's end rather than by `close`: what is held is released all the same.
            if not self._closed:
                await self._wind_up()

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop until it is cancelled: one that raises is run again, and the claims that are held stay renewed."""
        pauses = self.core.pace.reconnect.pauses()
        while not self._closed:
            try:
                await loop()
            except Exception:  # noqa: BLE001 - whatever ends it, it is still wanted
                log.exception("task_restarted")
                await asyncio.sleep(next(pauses, self.core.pace.reconnect.limit_s))

    async def _read_on(self) -> None:
        pauses = self.core.pace.reconnect.pauses()
        while True:
            try:
                raw = await self._link.next_answer()
            except BrokerDown as error:
                log.warning("answers_unreachable error=%s", error)
                await asyncio.sleep(next(pauses, self.core.pace.reconnect.limit_s))
                continue
            pauses = self.core.pace.reconnect.pauses()
            if raw is not None:
                self.tell(self.core.answered(raw, self.now()))

    async def _renew(self) -> None:
        holdings = self.core.holdings
        while True:
            self._sooner.clear()
            pause = holdings.due_in(self.now())
            if pause is None or pause > 0:
                await _wait(self._sooner, pause)
                continue
            try:
                for call in holdings.renewals():
                    await self.ask(call, self.core.renewed)
            except PoolError as error:
                log.warning("renewal_unanswered error=%s", error)
                holdings.retry(self.now())
            else:
                holdings.rest(self.now())


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
