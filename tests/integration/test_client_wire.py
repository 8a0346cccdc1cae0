"""The client on a real Redis: with real Celery workers, and with a server that a test plays by
hand.

`service` answers the contract's tasks. It is a stand-in; any object with the same methods fits.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import redis
from celery import Celery

from pool.client import (
    AnswerOverdue,
    AsyncPool,
    AsyncWorker,
    BrokerDown,
    ClaimLost,
    Pool,
    PoolClosed,
    Refused,
    TaskFailed,
    Worker,
)
from pool.client.identity import identity
from pool.client.link import Link
from pool.client.wire import ReplyWire
from tests.support.redis_server import RedisServer
from tests.support.standin_pool import StandIn, a_grant
from tests.support.waiting import eventually

T = TypeVar("T")
LIMIT_S = 20


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture(scope="module")
def service() -> Iterator[StandIn]:
    with RedisServer() as running, StandIn(running.url) as answering:
        yield answering


@pytest.fixture
def url(server: RedisServer) -> str:
    """An empty Redis without a server."""
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@pytest.fixture
def script(url: str) -> Iterator[WireScript]:
    with WireScript(url) as playing:
        yield playing


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=8) as threads:
        yield threads


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the threads that read answers, in order."""
    names: list[str] = []
    reading = Link.answers

    def noted(self: Link, *given: Any, **also: Any) -> list[bytes]:
        names.append(threading.current_thread().name)
        return reading(self, *given, **also)

    monkeypatch.setattr(Link, "answers", noted)
    return names


class WireMessage:
    """A message as the server reads it."""

    def __init__(self, raw: bytes) -> None:
        whole = json.loads(raw)
        self.task: str = whole["headers"]["task"]
        self.task_id: str = whole["headers"]["id"]
        self.reply_to: str = whole["properties"]["reply_to"]
        self.kwargs: dict[str, Any] = json.loads(base64.b64decode(whole["body"]))[1]


class WireScript:
    """The server, played by the test: it answers only when the test does."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, socket_timeout=LIMIT_S + 5)

    def __enter__(self) -> WireScript:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def take(self, *tasks: str) -> WireMessage:
        """Return the next message, which must be of one of these tasks."""
        popped = self._client.brpop(["acquire"], timeout=LIMIT_S)
        assert popped, f"no message within {LIMIT_S} s"
        assert isinstance(popped[1], bytes)
        message = WireMessage(popped[1])
        assert message.task in tasks
        return message

    def is_idle(self) -> bool:
        return self._client.llen("acquire") == 0

    def answer(self, message: WireMessage, result: object) -> None:
        meta = {"task_id": message.task_id, "status": "SUCCESS", "result": result, "traceback": None}
        self._client.rpush(message.reply_to, json.dumps(meta))

    def grant(self, number: int = 1) -> WireMessage:
        message = self.take("pool.acquire")
        self.answer(message, a_grant(number))
        return message


def granted_by(script: WireScript, background: ThreadPoolExecutor, ask: Callable[[], T]) -> T:
    """Return the result of `ask` when its acquire is granted."""
    future: Future[T] = background.submit(ask)
    script.grant()
    return future.result(LIMIT_S)


class TestAgainstCelery:
    def test_a_stock_celery_worker_runs_what_the_client_sends(self, service: StandIn) -> None:
        with Pool(service.url, name="billing") as pool:
            worker = pool.acquire("acme", wait_s=5, lease_s=30)
            assert worker.endpoint.startswith("http://")
            assert worker.auth["X-Warmpool-Claim"] == worker.claim_id
            assert worker.auth["X-Warmpool-Epoch"] == "7"
            assert worker.source == "warm"
            assert worker.lease_expires_at.tzinfo is not None
            assert service.claim(worker.claim_id) == "live"
            assert worker.release() == "released"
            assert worker.release() == "already_released"
            assert pool.release("c-none") == "unknown_claim"
            assert pool.cancel("acme", "never-asked") == "unknown_request"

    def test_a_service_with_its_own_celery_gets_the_same_answer(self, service: StandIn) -> None:
        app = Celery(broker=service.url, backend=service.url)
        kwargs = {"org": "acme", "request_id": "shared"}
        with app:
            result = app.send_task("pool.acquire", kwargs=kwargs, queue="acquire").get(timeout=LIMIT_S)
            with Pool(service.url) as pool:
                assert pool.acquire("acme", request_id="shared").claim_id == result["claim_id"]
            backend: Any = app.backend
            backend.result_consumer.stop()

    def test_a_message_is_what_kombu_would_have_sent(self, script: WireScript, url: str) -> None:
        kwargs = {"claim_id": "c-1", "condition": "clean"}
        with Celery(broker=url) as app:
            app.send_task("pool.release", kwargs=kwargs, queue="acquire", reply_to="warmpool.reply.x")
        pool = Pool(url, answer_grace_s=0.1)
        with ThreadPoolExecutor() as threads, redis.Redis.from_url(url) as client:
            pending = threads.submit(pool.release, "c-1")
            eventually(lambda: client.llen("acquire") == 2)
            ours, theirs = (json.loads(raw) for raw in client.lrange("acquire", 0, -1))
            pool.close()
            assert isinstance(pending.exception(LIMIT_S), PoolClosed)
        for message in (ours, theirs):
            for own in ("id", "root_id", "origin", "ignore_result"):
                message["headers"].pop(own)
            for own in ("correlation_id", "delivery_tag", "reply_to"):
                message["properties"].pop(own)
        assert ours == theirs

    def test_a_block_that_raises_releases_its_worker_as_clean(self, service: StandIn) -> None:
        with Pool(service.url) as pool:
            with pytest.raises(ZeroDivisionError), pool.acquire("acme") as worker:
                _ = 1 / 0
            assert service.claim(worker.claim_id) == "clean"
            assert not pool.holds(worker.claim_id)
            with pytest.raises(ClaimLost, match="released here"):
                _ = worker.auth

    def test_several_workers_are_released_once_and_as_the_holder_chose(
        self, service: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Pool(service.url) as pool:
            with pool.acquire_many("acme", count=3) as workers:
                first, second, third = workers
                assert first.release() == "released"
                second.taint()
            ends = [service.claim(worker.claim_id) for worker in (first, second, third)]
            assert ends == ["clean", "tainted", "clean"]
            with pool.acquire_many("acme", count=2) as workers:
                assert [worker.release() for worker in workers] == ["released"] * 2
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []

    def test_several_workers_are_released_with_asyncio(
        self, service: StandIn, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario() -> list[str | None]:
            async with AsyncPool(service.url) as pool:
                async with pool.acquire_many("acme", count=3) as workers:
                    assert len({worker.token for worker in workers}) == 3
                    await workers[0].release()
                async with pool.acquire_many("acme", count=2) as others:
                    for worker in others:
                        await worker.release()
                return [service.claim(worker.claim_id) for worker in (*workers, *others)]

        assert asyncio.run(scenario()) == ["clean"] * 5
        assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []

    def test_a_tainted_worker_is_released_as_tainted(self, service: StandIn) -> None:
        with Pool(service.url) as pool:
            with pool.acquire("acme") as worker:
                worker.taint()
            assert service.claim(worker.claim_id) == "tainted"

    def test_a_refusal_carries_its_reason_and_a_hint(self, service: StandIn) -> None:
        with Pool(service.url) as pool, pytest.raises(Refused) as caught:
            pool.acquire("full")
        assert (caught.value.reason, caught.value.retry_after_s) == ("org_cap", 1.5)
        assert caught.value.detail == "2 of 2 in use"

    def test_an_error_of_the_server_is_transient(self, service: StandIn) -> None:
        with Pool(service.url) as pool, pytest.raises(TaskFailed, match="RuntimeError: the database is away"):
            pool.acquire("broken")

    def test_a_lost_reply_is_requested_again_and_is_the_same_grant(self, service: StandIn) -> None:
        service.lose_next_reply()
        with Pool(service.url) as pool:
            worker = pool.acquire("acme", request_id="lost-reply")
            runs = [run for run in service.ran("pool.acquire") if run[1]["request_id"] == "lost-reply"]
            assert len(runs) == 2
            assert runs[0] == runs[1], "the same task, with the same request_id"
            assert pool.acquire("acme", request_id="lost-reply").claim_id == worker.claim_id

    def test_a_lost_reply_to_a_release_is_requested_again(self, service: StandIn) -> None:
        with Pool(service.url) as pool:
            worker = pool.acquire("acme")
            service.lose_next_reply()
            assert worker.release() == "already_released"

    def test_many_threads_each_get_their_own_answer(
        self, service: StandIn, background: ThreadPoolExecutor
    ) -> None:
        with Pool(service.url) as pool:
            workers = list(background.map(lambda _: pool.acquire("acme"), range(100)))
            assert len({worker.claim_id for worker in workers}) == 100
            assert len({worker.token for worker in workers}) == 100

    def test_a_claim_that_ends_elsewhere_is_lost_with_its_cause(self, service: StandIn) -> None:
        with Pool(service.url) as pool, pool.acquire("acme", lease_s=5) as worker:
            service.end_claim(worker.claim_id, "its node went away")
            assert worker.wait_lost(LIMIT_S)
            with pytest.raises(ClaimLost, match="its node went away"):
                _ = worker.endpoint
        assert service.claim(worker.claim_id) == "its node went away", "not ours to release any more"

    def test_the_asyncio_client_does_the_same(self, service: StandIn) -> None:
        async def scenario() -> None:
            async with AsyncPool(service.url, name="twin") as pool:
                async with pool.acquire("acme", lease_s=5) as worker:
                    assert worker.auth["X-Warmpool-Claim"] == worker.claim_id
                    eventually(lambda: service.claim(worker.claim_id) == "live")
                assert service.claim(worker.claim_id) == "clean"
                lost = await pool.acquire("acme", lease_s=5)
                service.end_claim(lost.claim_id, "evicted")
                async with asyncio.timeout(LIMIT_S):
                    await lost.wait_lost()
                with pytest.raises(ClaimLost, match="evicted"):
                    _ = lost.token
                service.lose_next_reply()
                several = await asyncio.gather(*(pool.acquire("acme") for _ in range(20)))
                assert len({worker.claim_id for worker in several}) == 20
                with pytest.raises(Refused, match="org_cap"):
                    await pool.acquire("full")
                kept = several[0]
                assert await pool.release("c-none") == "unknown_claim"
            eventually(lambda: service.claim(kept.claim_id) == "clean")

        asyncio.run(scenario())

    def test_an_asyncio_pool_restarts_in_another_event_loop(self, service: StandIn) -> None:
        pool = AsyncPool(service.url)

        async def once() -> str:
            return (await pool.acquire("acme")).claim_id

        first, second = asyncio.run(once()), asyncio.run(once())
        assert first != second
        for claim_id in (first, second):
            eventually(lambda claim_id=claim_id: service.claim(claim_id) == "clean")  # type: ignore[misc]


class TestGivingUp:
    def test_ctrl_c_during_a_wait_cancels_the_request(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        def interrupt() -> WireMessage:
            message = script.take("pool.acquire")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return message

        with Pool(url) as pool:
            asked = background.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                pool.acquire("acme", wait_s=60)
            cancel = script.take("pool.cancel")
            assert cancel.kwargs == {"org": "acme", "request_id": asked.result(LIMIT_S).kwargs["request_id"]}
            assert cancel.reply_to == "", "no caller waits for it"

    def test_several_acquires_are_one_command_and_none_is_kept_if_one_is_refused(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        with Pool(url) as pool, redis.Redis.from_url(url) as client:
            client.config_resetstat()
            together = background.submit(pool.acquire_many, "acme", count=3, wait_s=5)
            asked = [script.take("pool.acquire") for _ in range(3)]
            assert client.info("commandstats")["cmdstat_lpush"]["calls"] == 1
            assert len({message.kwargs["request_id"] for message in asked}) == 3
            script.answer(asked[2], a_grant(1))
            script.answer(
                asked[0], {"outcome": "refused", "reason": "org_cap", "detail": "", "retry_after_s": 2}
            )
            script.answer(asked[1], a_grant(2))
            with pytest.raises(Refused, match="org_cap"):
                together.result(LIMIT_S)
            # A grant that had not arrived yet is cancelled, and released when it comes.
            released: set[str] = set()
            while released != {"c-1", "c-2"}:
                undone = script.take("pool.release", "pool.cancel")
                released |= {undone.kwargs["claim_id"]} if undone.task == "pool.release" else set()
            assert not pool.holds("c-1")
            assert not pool.holds("c-2")

    def test_several_acquires_that_are_not_answered_are_all_cancelled(
        self, url: str, script: WireScript
    ) -> None:
        with Pool(url, answer_grace_s=0.2) as pool:
            with pytest.raises(AnswerOverdue):
                pool.acquire_many("acme", count=3)
            asked = {script.take("pool.acquire").kwargs["request_id"] for _ in range(3)}
            cancelled = {script.take("pool.cancel").kwargs["request_id"] for _ in range(3)}
            assert cancelled == asked

    def test_a_late_grant_is_released(self, url: str, script: WireScript) -> None:
        with Pool(url, answer_grace_s=0.2) as pool:
            with pytest.raises(AnswerOverdue):
                pool.acquire("acme")
            asked = script.take("pool.acquire")
            script.take("pool.cancel")
            script.answer(asked, a_grant(5))
            assert script.take("pool.release").kwargs == {"claim_id": "c-5", "condition": "clean"}
            assert not pool.holds("c-5")

    def test_a_cancelled_asyncio_acquire_cancels_the_request_and_releases_a_late_grant(
        self, url: str, script: WireScript
    ) -> None:
        async def scenario() -> None:
            async with AsyncPool(url) as pool:
                acquiring = asyncio.ensure_future(pool.acquire("acme", wait_s=60))
                asked = await asyncio.to_thread(script.take, "pool.acquire")
                acquiring.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await acquiring
                cancel = await asyncio.to_thread(script.take, "pool.cancel")
                assert cancel.kwargs["request_id"] == asked.kwargs["request_id"]
                script.answer(asked, a_grant(6))
                release = await asyncio.to_thread(script.take, "pool.release")
                assert release.kwargs["claim_id"] == "c-6"

        asyncio.run(scenario())


class TestTrouble:
    def test_an_unreachable_broker_is_reported_at_once_without_its_password(self) -> None:
        server = RedisServer()
        url = f"redis://:hunter2@127.0.0.1:{server.port}/0"
        server.close()
        with Pool(url) as pool, pytest.raises(BrokerDown) as caught:
            pool.acquire("acme", wait_s=600)
        assert f"redis://:***@127.0.0.1:{server.port}/0" in str(caught.value)
        assert "refused" in str(caught.value)
        assert "hunter2" not in str(caught.value)

        async def twin() -> None:
            async with AsyncPool(url) as pool:
                await pool.acquire("acme", wait_s=600)

        with pytest.raises(BrokerDown):
            asyncio.run(twin())

    @pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
    def test_a_wait_survives_a_redis_that_comes_back_empty(
        self, background: ThreadPoolExecutor, end: Callable[[RedisServer], None]
    ) -> None:
        with RedisServer() as server, Pool(server.url) as pool:
            waiting = background.submit(pool.acquire, "acme", wait_s=60)
            with WireScript(server.url) as script:
                first = script.take("pool.acquire")
            end(server)
            server.start()
            with WireScript(server.url) as script:
                again = script.take("pool.acquire")
                assert (again.task_id, again.kwargs) == (first.task_id, first.kwargs)
                script.answer(again, a_grant())
                assert waiting.result(LIMIT_S).claim_id == "c-1"

    def test_an_asyncio_wait_survives_a_redis_that_comes_back_empty(self) -> None:
        async def scenario(server: RedisServer) -> AsyncWorker:
            async with AsyncPool(server.url) as pool:
                waiting = asyncio.ensure_future(pool.acquire("acme", wait_s=60))
                with WireScript(server.url) as script:
                    await asyncio.to_thread(script.take, "pool.acquire")
                await asyncio.to_thread(server.restart)
                with WireScript(server.url) as script:
                    await asyncio.to_thread(script.grant)
                    return await waiting

        with RedisServer() as server:
            assert asyncio.run(scenario(server)).claim_id == "c-1"

    def test_a_release_that_fails_does_not_hide_the_error_of_the_block(
        self, background: ThreadPoolExecutor
    ) -> None:
        with RedisServer() as server, Pool(server.url) as pool:
            with WireScript(server.url) as script:
                worker = granted_by(script, background, lambda: pool.acquire("acme"))
            server.kill()
            with pytest.raises(ZeroDivisionError), worker:
                _ = 1 / 0
            with pytest.raises(BrokerDown):
                worker.release()

    @pytest.mark.parametrize("also", [["+lpop"], []], ids=["", "without the right to take several"])
    def test_a_client_needs_only_the_documented_permissions(
        self, url: str, script: WireScript, background: ThreadPoolExecutor, also: list[str]
    ) -> None:
        sending = [
            "-@all",
            "+hello",
            "+auth",
            "+ping",
            "+client|setname",
            "+client|setinfo",
            "+select",
            "+lpush",
            "%W~acquire",
        ]
        listening = ["+blpop", "+rpush", "+expire", *also, "~warmpool.reply.billing.*"]
        with redis.Redis.from_url(url) as client:
            rights = [*sending, f"({' '.join(listening)})"]
            client.execute_command("ACL", "SETUSER", "billing", "reset", "on", ">pw", *rights)
        with Pool(url.replace("redis://", "redis://billing:pw@"), name="billing") as pool:
            assert granted_by(script, background, lambda: pool.acquire("acme")).claim_id == "c-1"
            # One caller reads for all of them, and answers that arrive together are read together.
            for batch in range(3):
                waiting = [background.submit(pool.acquire, "acme") for _ in range(4)]
                asked = [script.take("pool.acquire") for _ in waiting]
                for number, message in enumerate(asked):
                    script.answer(message, a_grant(10 * batch + number + 2))
                assert len({future.result(LIMIT_S).claim_id for future in waiting}) == 4
                assert script.is_idle(), "no caller had to repeat its request"
        released = {script.take("pool.release").kwargs["claim_id"] for _ in range(13)}
        assert len(released) == 13

    @pytest.mark.parametrize("rights", ["+lpop", ""])
    def test_replies_are_read_together_if_the_acl_permits_it(self, url: str, rights: str) -> None:
        who = identity("billing")
        with redis.Redis.from_url(url) as client:
            allowed = ("~*", "-@all", "+hello", "+auth", "+client", "+select", "+blpop", *rights.split())
            client.execute_command("ACL", "SETUSER", "billing", "reset", "on", ">pw", *allowed)
            client.rpush(who.reply_to, "1", "2", "3")
            link = Link(url.replace("redis://", "redis://billing:pw@"), who)
            got = [link.answers(5, many=True) for _ in range(1 if rights else 3)]
            link.close()
            assert [len(each) for each in got] == ([3] if rights else [1, 1, 1])
            assert [raw for each in got for raw in each] == [b"1", b"2", b"3"]


class TestRenewing:
    def test_a_thousand_held_claims_are_renewed_by_one_message_a_round(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        with Pool(url) as pool:
            everything = [background.submit(pool.acquire, "acme", lease_s=5) for _ in range(1000)]
            granted: set[str] = set()
            rounds = 0
            while rounds < 2:
                message = script.take("pool.acquire", "pool.renew")
                if message.task == "pool.acquire":
                    granted.add(f"c-{len(granted) + 1}")
                    script.answer(message, a_grant(len(granted)))
                    continue
                # A round may begin while claims are still being made; once all exist, each round
                # renews all of them.
                renewed = dict.fromkeys(message.kwargs["claim_ids"], "2031-05-01T12:00:30Z")
                rounds += len(renewed) == 1000
                assert len(renewed) == 1000 or not rounds
                script.answer(message, {"renewed": renewed, "gone": {}})
            workers = [future.result(LIMIT_S) for future in everything]
            assert {worker.claim_id for worker in workers} == granted
            eventually(lambda: all(worker.lease_expires_at.second == 30 for worker in workers))
            assert not any(worker.lost for worker in workers)

    def test_unanswered_renewals_end_no_claim(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        with Pool(url) as pool:
            worker = granted_by(script, background, lambda: pool.acquire("acme", lease_s=5))
            rounds = {script.take("pool.renew").task_id for _ in range(2)}
            assert len(rounds) == 2
            assert not worker.lost
            assert worker.auth
            script.answer(script.take("pool.renew"), {"renewed": {}, "gone": {worker.claim_id: "expired"}})
            assert worker.wait_lost(LIMIT_S), "the server's word counts when it comes"


class TestProcesses:
    def test_a_single_caller_reads_its_own_reply(
        self, url: str, script: WireScript, background: ThreadPoolExecutor, readers: list[str]
    ) -> None:
        """No thread wakes another: in an acquire that would be the most expensive step."""
        with Pool(url) as pool:
            for number in (1, 2):
                playing = background.submit(script.grant, number)
                pool.acquire("acme")
                playing.result(LIMIT_S)
        assert set(readers) == {threading.current_thread().name}

    def test_a_caller_reads_its_own_reply_again_after_the_others_left(
        self, url: str, script: WireScript, background: ThreadPoolExecutor, readers: list[str]
    ) -> None:
        """A caller that calls repeatedly does not have the reader thread between itself and its
        answers.
        """
        with Pool(url) as pool:
            leads = background.submit(pool.acquire, "acme")
            first = script.take("pool.acquire")
            waiting = [background.submit(pool.acquire, "acme") for _ in range(2)]
            others = [script.take("pool.acquire") for _ in waiting]
            script.answer(first, a_grant(1))
            leads.result(LIMIT_S)
            eventually(lambda: any(name.startswith("warmpool-client") for name in readers))
            for number, message in enumerate(others, start=2):
                script.answer(message, a_grant(number))
            for future in waiting:
                future.result(LIMIT_S)
            playing = background.submit(lambda: [script.grant(n) for n in range(10, 40)])
            for _ in range(30):
                pool.acquire("acme")
            playing.result(LIMIT_S)
        assert readers[-5:] == [threading.current_thread().name] * 5

    def test_waiting_callers_are_answered_after_the_reading_caller_leaves(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        with Pool(url) as pool:
            reads = background.submit(pool.acquire, "acme")
            first = script.take("pool.acquire")
            waits = [background.submit(pool.acquire, "acme") for _ in range(3)]
            others = [script.take("pool.acquire") for _ in waits]
            script.answer(first, a_grant(1))
            assert reads.result(LIMIT_S).claim_id == a_grant(1)["claim_id"]
            for number, message in enumerate(others, start=2):
                script.answer(message, a_grant(number))
            assert len({future.result(LIMIT_S).claim_id for future in waits}) == 3
            assert script.is_idle(), "no caller had to repeat its request"

    def test_messages_published_while_the_connection_is_busy_are_sent_together(
        self, url: str, background: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commands, go_on = list[tuple[Any, ...]](), threading.Event()
        ask = ReplyWire.execute

        def slow(wire: ReplyWire, *command: Any) -> Any:
            commands.append(command)
            go_on.wait(LIMIT_S)
            return ask(wire, *command)

        monkeypatch.setattr(ReplyWire, "execute", slow)
        link = Link(url, identity("test"))
        first = background.submit(link.publish, "1")
        eventually(lambda: commands)
        others = [background.submit(link.publish, *texts) for texts in (("2",), ("3", "4"), ("5",))]
        eventually(lambda: len(link._gathered) == 3)
        go_on.set()
        for future in (first, *others):
            future.result(LIMIT_S)
        link.close()
        assert [len(command) - 2 for command in commands] == [1, 4]
        with redis.Redis.from_url(url) as client:
            assert sorted(client.lrange("acquire", 0, -1)) == [b"1", b"2", b"3", b"4", b"5"]

    @pytest.mark.parametrize(
        "trouble", [redis.TimeoutError("slow"), KeyboardInterrupt()], ids=["slow", "interrupted"]
    )
    def test_a_failed_bundle_is_reported_to_each_of_its_publishers(
        self,
        url: str,
        background: ThreadPoolExecutor,
        monkeypatch: pytest.MonkeyPatch,
        trouble: BaseException,
    ) -> None:
        """Messages that were queued behind an unreachable broker do not wait for it a second time."""
        asked, go_on = list[tuple[Any, ...]](), threading.Event()

        def hangs(_wire: ReplyWire, *command: Any) -> Any:
            asked.append(command)
            go_on.wait(LIMIT_S)
            raise trouble

        monkeypatch.setattr(ReplyWire, "execute", hangs)
        link = Link(url, identity("test"))
        first = background.submit(link.publish, "1")
        eventually(lambda: asked)
        others = [background.submit(link.publish, "2") for _ in range(3)]
        eventually(lambda: len(link._gathered) == 3)
        go_on.set()
        raised = [type(future.exception(LIMIT_S)) for future in (first, *others)]
        if isinstance(trouble, redis.TimeoutError):
            assert (raised, len(asked)) == ([BrokerDown] * 4, 1)
        else:
            # The first one, and of the others the one that published for them.
            assert (raised[0], sorted(raised[1:], key=str)) == (
                KeyboardInterrupt,
                sorted([BrokerDown, BrokerDown, KeyboardInterrupt], key=str),
            )
        link.close()

    def test_a_bundle_whose_publisher_was_interrupted_is_published_by_its_owner(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link = Link(url, identity("test"))
        monkeypatch.setattr(link, "_gathered", deque(maxlen=0))  # taken, and never processed
        link.publish("1")
        link.close()
        with redis.Redis.from_url(url) as client:
            assert client.lrange("acquire", 0, -1) == [b"1"]

    def test_a_signals_handler_may_publish_while_its_own_thread_does(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link, ask = Link(url, identity("test")), ReplyWire.execute

        def interrupted(wire: ReplyWire, *command: Any) -> Any:
            monkeypatch.setattr(ReplyWire, "execute", ask)
            link.publish("from the handler")
            return ask(wire, *command)

        monkeypatch.setattr(ReplyWire, "execute", interrupted)
        link.publish("from the thread")
        link.close()
        with redis.Redis.from_url(url) as client:
            assert client.lrange("acquire", 0, -1) == [b"from the thread", b"from the handler"]

    def test_no_thread_runs_before_the_first_call_or_after_close(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        def ours() -> list[threading.Thread]:
            return [thread for thread in threading.enumerate() if thread.name.startswith("warmpool-client")]

        pool = Pool(url)
        assert ours() == []
        granted_by(script, background, lambda: pool.acquire("acme"))
        assert len(ours()) == 2
        assert all(thread.daemon for thread in ours())
        pool.close()
        assert ours() == []
        assert script.take("pool.release").kwargs["claim_id"] == "c-1"
        with pytest.raises(PoolClosed):
            pool.acquire("acme")

    def test_a_caller_that_reads_during_close_gets_its_answer(
        self,
        url: str,
        script: WireScript,
        background: ThreadPoolExecutor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The reading caller closes the connection, after its read."""
        reading, closed = threading.Event(), threading.Event()
        while_reading: list[bool] = []
        read, close = Link.answers, Link.close

        def slow(link: Link, *given: Any, **also: Any) -> list[bytes]:
            reading.set()
            try:
                answers = read(link, *given, **also)
                closed.wait(LIMIT_S)
                return answers
            finally:
                reading.clear()

        def told(link: Link) -> None:
            while_reading.append(reading.is_set())
            close(link)

        monkeypatch.setattr(Link, "answers", slow)
        monkeypatch.setattr(Link, "close", told)
        pool = Pool(url)
        pending = background.submit(pool.acquire, "acme")
        script.take("pool.acquire")
        assert reading.wait(LIMIT_S)
        pool.close()
        closed.set()
        assert isinstance(pending.exception(LIMIT_S), PoolClosed)
        eventually(lambda: while_reading)
        assert while_reading == [False]

    def test_a_process_that_ends_releases_its_claims(self, url: str, script: WireScript) -> None:
        code = f"from pool.client import Pool; pool = Pool({url!r}); worker = pool.acquire('acme')"
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            script.grant()
            assert script.take("pool.release").kwargs["claim_id"] == "c-1"
            assert process.wait(LIMIT_S) == 0

    def test_an_unreferenced_pool_releases_its_claims(
        self, url: str, script: WireScript, background: ThreadPoolExecutor
    ) -> None:
        endpoint = granted_by(script, background, lambda: Pool(url).acquire("acme").endpoint)
        assert endpoint
        message = script.take("pool.renew", "pool.release")
        while message.task == "pool.renew":
            message = script.take("pool.renew", "pool.release")
        assert message.kwargs["claim_id"] == "c-1"

    def test_a_forked_child_has_its_own_reply_list_and_leaves_the_parents_claims_alone(
        self, url: str, script: WireScript
    ) -> None:
        code = f"""
import os, sys
from pool.client import Pool
pool = Pool({url!r})
with pool.acquire("parent") as worker:
    child = os.fork()
    if child == 0:
        with pool.acquire("child") as mine:
            assert not pool.holds(worker.claim_id) and pool.holds(mine.claim_id)
    else:
        assert os.waitpid(child, 0)[1] == 0
        assert pool.holds(worker.claim_id)
        assert pool.acquire("parent").claim_id == "c-3"
"""
        with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code]) as process:
            parent, child = script.grant(1), script.grant(2)
            assert (parent.kwargs["org"], child.kwargs["org"]) == ("parent", "child")
            assert parent.reply_to != child.reply_to
            released = script.take("pool.release")
            assert released.kwargs["claim_id"] == "c-2", "the child gives back its own, not the parent's"
            assert released.reply_to == child.reply_to
            script.answer(released, {"outcome": "released"})
            assert script.grant(3).reply_to == parent.reply_to
            released = script.take("pool.release")
            assert released.kwargs["claim_id"] == "c-1"
            script.answer(released, {"outcome": "released"})
            assert script.take("pool.release").kwargs["claim_id"] == "c-3"
            assert process.wait(LIMIT_S) == 0

    def test_the_token_is_in_no_log(self, service: StandIn, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG), Pool(service.url) as pool, pool.acquire("acme") as worker:
            token = worker.token
            assert isinstance(worker, Worker)
        assert token not in caplog.text
