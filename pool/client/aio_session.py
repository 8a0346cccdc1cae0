"""The session of one event loop: its connections and its two tasks, the reader and the renewer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from pool.client.calls import PendingCall
from pool.client.core import Core, log
from pool.client.credentials import KeySource, Signer
from pool.client.errors import LINK_ERRORS, PoolClosed
from pool.client.identity import Identity
from pool.client.link import PUBLISH, PUBLISH_TIMEOUT_S, READ, TIME, host_s, options
from pool.client.open_call import GiveUp, OpenCall, Pace, Send, Wait
from pool.client.reply_reader import BLOCK_S, READ_TIMEOUT_S
from pool.client.trouble import Troubles
from pool.core.clock import Clock, SystemClock
from pool.core.errors import PoolError

T = TypeVar("T")


class AsyncLink:
    """The counterpart of `Link` for asyncio. Every failure is raised as one of `LINK_ERRORS`."""

    def __init__(self, url: str, identity: Identity) -> None:
        from redis import RedisError
        from redis import asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import NoPermissionError

        from pool.broker import aioconnecting

        self._errors = (RedisError, OSError)
        self._troubles = Troubles(url, SystemClock())
        self._reply_to = identity.reply_to
        self._queue = identity.queue
        self._no_right = NoPermissionError

        def client(retries: int) -> redis.Redis:
            made = aioconnecting.connect(url, retry=Retry(NoBackoff(), retries), **options(identity))
            # We apply timeouts ourselves: those of redis-py use asyncio.wait_for, which on Python
            # 3.11 can swallow a cancellation.
            made.connection_pool.connection_kwargs["socket_timeout"] = None
            return made

        self._writer = client(1)
        self._reader = client(0)

    async def publish(self, *messages: str) -> None:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                await self._writer.lpush(self._queue, *messages)
        except self._errors as exc:
            raise self._troubles.of(PUBLISH, exc) from exc
        self._troubles.over(PUBLISH)

    async def time_s(self) -> float:
        try:
            async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                seconds, microseconds = await self._writer.time()
        except self._no_right:
            return host_s()
        except self._errors as exc:
            raise self._troubles.of(TIME, exc) from exc
        self._troubles.over(TIME)
        return seconds + microseconds / 1e6

    async def next_answer(self) -> bytes | None:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                popped = await cast(
                    "Awaitable[list[bytes] | None]", self._reader.blpop([self._reply_to], timeout=BLOCK_S)
                )
        except self._errors as exc:
            raise self._troubles.of(READ, exc) from exc
        self._troubles.over(READ)
        return popped[1] if popped else None

    async def close(self) -> None:
        await self._writer.aclose()
        await self._reader.aclose()


CANCEL_AGAIN_S = 1.0


class AsyncSession:
    """Execute what `Core` decides, in the event loop in which the session was created."""

    def __init__(self, url: str, identity: Identity, source: KeySource | None = None) -> None:
        self._sooner = asyncio.Event()
        self._clock: Clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._link = AsyncLink(url, identity)
        self._loops: list[asyncio.Task[None]] = []
        self._notifying: set[asyncio.Task[None]] = set()
        self._closed = False
        signer = None if source is None else Signer(source, self._clock)
        self.core = Core(identity, Pace(), sooner=self._sooner, signer=signer)

    def is_here(self) -> bool:
        """Return whether the session belongs to the running event loop of this process."""
        return self._loop is asyncio.get_running_loop() and self._pid == os.getpid()

    def now(self) -> float:
        return self._clock.monotonic()

    async def call(self, call: PendingCall, take: Callable[[object], T]) -> T:
        """Send a call, wait for the answer and return `take(result)`.

        If the caller leaves before that, its request is cancelled, and a claim that was granted is
        released.
        """
        self._start()
        answered = asyncio.Event()
        open_call = self.core.open(call, answered, self.now())
        try:
            taken = take(await self._answer_to(open_call, answered))
        except BaseException:
            self.notify(self.core.abandon(open_call, self.now()))
            raise
        self.core.finish(open_call)
        return taken

    async def call_all(self, pending: Sequence[PendingCall], take: Callable[[object], T]) -> list[T]:
        """Send calls in one command, wait for all answers and return `take(result)` of each.

        If one fails, all are undone as by `call`.
        """
        self._start()
        opened: list[tuple[OpenCall, asyncio.Event]] = []
        try:
            for call in pending:
                answered = asyncio.Event()
                opened.append((self.core.open(call, answered, self.now()), answered))
            await self._send([open_call for open_call, _ in opened])
            taken = [take(await self._answer_to(open_call, answered)) for open_call, answered in opened]
        except BaseException:
            self.notify([undo for each, _ in opened for undo in self.core.abandon(each, self.now())])
            raise
        for open_call, _ in opened:
            self.core.finish(open_call)
        return taken

    def notify(self, unawaited: list[PendingCall]) -> None:
        """Send calls without waiting for the answers.

        The publishing runs in its own task, because the calling task may be in the middle of a
        cancellation.
        """
        if unawaited and not self._loop.is_closed():
            task = self._loop.create_task(self._notify(unawaited))
            self._notifying.add(task)
            task.add_done_callback(self._notifying.discard)

    async def close(self) -> None:
        """Stop both tasks. Try to release the claims still held."""
        self._closed = True
        running = set(self._loops)
        while running:
            # Again until all have ended: a library may turn a cancellation into an error of its own.
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*self._loops, return_exceptions=True)
        await self._wind_up()

    async def _wind_up(self) -> None:
        self._closed = True
        self.notify(self.core.close())
        await asyncio.gather(*self._notifying, return_exceptions=True)
        await self._link.close()

    async def _answer_to(self, open_call: OpenCall, answered: asyncio.Event) -> object:
        while open_call.answer is None:
            match open_call.step(self.now()):
                case Send():
                    await self._send([open_call])
                case Wait(seconds):
                    await _wait(answered, seconds)
                case GiveUp(error):
                    raise error
        return open_call.answer.value()

    async def _send(self, together: list[OpenCall]) -> None:
        try:
            await self._learn_time()
        except LINK_ERRORS as error:
            for open_call in together:
                open_call.held_up(self.now(), error)
            return
        try:
            await self._link.publish(*[self.core.sending(open_call) for open_call in together])
        except LINK_ERRORS as error:
            for open_call in together:
                open_call.unsent(self.now(), error)
        else:
            for open_call in together:
                open_call.sent(self.now())

    async def _notify(self, unawaited: list[PendingCall]) -> None:
        try:
            await self._learn_time()
            await self._link.publish(*self.core.notifications(unawaited))
        except LINK_ERRORS as error:
            log.info("messages_unsent tasks=%s error=%s", sorted({call.task for call in unawaited}), error)

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
            # Cancelled by the end of the event loop, not by `close`: release the claims still held.
            if not self._closed:
                await self._wind_up()

    async def _keep(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Run a loop until it is cancelled. Start it again if it raises, so that claims stay renewed."""
        pauses = self.core.pace.reconnect.pauses()
        while not self._closed:
            try:
                await loop()
            except Exception:  # noqa: BLE001 - the session needs it after any error
                log.exception("task_restarted")
                await asyncio.sleep(next(pauses, self.core.pace.reconnect.limit_s))

    async def _read_on(self) -> None:
        pauses = self.core.pace.reconnect.pauses()
        while True:
            try:
                raw = await self._link.next_answer()
            except LINK_ERRORS as error:
                self.core.unreadable(error)
                await asyncio.sleep(next(pauses, self.core.pace.reconnect.limit_s))
                continue
            pauses = self.core.pace.reconnect.pauses()
            if raw is not None:
                self.notify(self.core.answered(raw, self.now()))

    async def _renew(self) -> None:
        leases = self.core.leases
        while True:
            self._sooner.clear()
            pause = leases.due_in(self.now())
            if pause is None or pause > 0:
                await _wait(self._sooner, pause)
                continue
            try:
                for call in leases.renewals():
                    await self.call(call, self.core.renewed)
            except PoolError as error:
                # An outage has its own line.
                if not isinstance(error, LINK_ERRORS):
                    log.warning("renewal_unanswered error=%s", error)
                leases.retry(self.now())
            else:
                leases.rest(self.now())


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
