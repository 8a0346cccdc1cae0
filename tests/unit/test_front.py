"""From messages to replies, without Redis and without a database: a bad message affects no other,
and an outage loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from pool.core.contract import Release
from pool.core.ids import ClaimId
from pool.core.settings import PoolSettings
from pool.core.signing import INTERNAL_HEADER, Asked, InternalTasks
from pool.core.states import Condition
from pool.metrics import Metrics
from tasks.lane.admission import Admission
from tasks.lane.authenticator import Authenticator
from tasks.lane.delaying import MOST_S, Delayed
from tasks.lane.dropping import Dropped
from tasks.lane.exchange import NOTHING, Delivery, LateReply, Received, Replies, Taken, TaskReply
from tasks.lane.followers import SIGNED
from tasks.lane.front import Front
from tasks.lane.loop import Lane
from tasks.lane.messages import CANARY, DropReason
from tasks.lane.sharing import SharedThreads
from tasks.lane.slowpath import SlowPath
from tests.support.hostile_draft import follower
from tests.unit.test_incoming_messages import HEADERS, body, envelope, incoming, raw

NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
INTERNAL = InternalTasks.of([b"m" * 32])


class StepClock:
    """A clock that moves by what is waited for."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.waited: Callable[[], Any] = lambda: None

    def monotonic(self) -> float:
        return self.now_s

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.now_s += seconds
        self.waited()
        return stop.is_set()


class FakeMailbox:
    """Returns deliveries, stores messages as scripted, and records replies."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.away = False
        self.nonces = {"a"}
        self.posted: list[TaskReply] = []
        self.handed_back: list[Taken] = []
        self.forgotten: list[str] = []
        self.reconnected = 0

    def reconnect(self) -> None:
        self.reconnected += 1

    def take(self, most: int, queues: Sequence[str]) -> Delivery:
        return self.deliveries.pop() if self.deliveries else NOTHING

    def spent_nonces(self, taken: Sequence[Taken]) -> dict[str, str]:
        if self.away and self.nonces & {t.message.task_id for t in taken}:
            raise RedisConnectionError("away")
        return {}

    def forget(self, received: Received) -> None:
        self.forgotten.append(received.tag)

    def post(self, replies: Sequence[TaskReply] = (), late: Sequence[LateReply] = ()) -> None:
        self.posted += replies

    def hand_back(self, taken: Sequence[Taken]) -> None:
        self.handed_back += taken


class Bench:
    """A front whose decisions are only recorded."""

    def __init__(self, *, signed: bool = False) -> None:
        self.clock = StepClock()
        self.mailbox = FakeMailbox()
        self.metrics = Metrics()
        self.decided: list[str] = []
        pool = replace(PoolSettings(), signed_requests=signed)
        box: Any = self
        mailbox: Any = self.mailbox
        authenticator = Authenticator(pool, box, INTERNAL, box, self.clock)
        dropped = Dropped(self.metrics, self.clock)
        admission = Admission(mailbox, authenticator, dropped, 100_000)
        delayed = Delayed(self.clock, lambda: NOW)
        self.front = Front(box, admission, delayed, box, ThreadPoolExecutor(1))
        self.lane = Lane(mailbox, box, self.front, box, mailbox)

    def decide(self, taken: Sequence[Taken], replies: Replies) -> None:
        self.decided += [t.message.task_id for t in taken]

    def add(self, refused: Any) -> None:
        """As the audit log does."""

    def names(self) -> list[str]:
        return ["acquire"]

    def wait_for_room(self, turned: Callable[[], None]) -> None:
        """Return at once: there is always room."""

    def dropped(self, why: DropReason) -> float:
        return float(self.metrics.messages_refused.labels(str(why))._value.get())


def came(*frames: Any) -> Delivery:
    return Delivery(messages=[Received(raw(frame), f"t{n}") for n, frame in enumerate(frames)], now_s=0.0)


def call(task_id: str, **headers: Any) -> dict[str, Any]:
    return envelope(headers={**HEADERS, "id": task_id, **headers})


def canary(task_id: str) -> dict[str, Any]:
    """A message that needs no org's signature."""
    asked = Asked(
        task=CANARY, task_id=task_id, address="warmpool.reply.test.x", args=(), kwargs={"org": "acme"}
    )
    return call(task_id, task=CANARY, **{INTERNAL_HEADER: INTERNAL.sign(asked)})


def test_messages_that_came_together_are_decided_together() -> None:
    bench = Bench()
    replies = bench.front.serve(came(call("a"), call("b")))
    assert (bench.decided, replies.now) == (["a", "b"], [])
    assert not bench.front.has_work


def test_unreadable_and_unserved_messages_cost_no_other_its_answer() -> None:
    bench = Bench()
    others = came(call("x", task="pool.spawn"), call("a")).messages
    garbage = Delivery(messages=[Received(b"\xff", "garbage"), *others], now_s=0.0)
    replies = bench.front.serve(garbage)
    assert bench.decided == ["a"]
    assert bench.dropped(DropReason.NOT_JSON) == 1
    assert bench.dropped(DropReason.NOT_INTERNAL) == 1
    assert bench.mailbox.forgotten == ["garbage", "t0"]
    assert replies.now == []
    (refused,) = bench.front.serve(came(call("y", task="no.such.task"))).now
    assert refused.answer is not None
    assert "task: 'no.such.task'" in str(refused.answer)


@pytest.mark.parametrize("has_nonce", [False, True])
def test_outage_holds_messages_only_if_they_have_a_nonce(has_nonce: bool) -> None:
    bench = Bench()
    bench.mailbox.away = True
    bench.mailbox.nonces = {"a"} if has_nonce else set()
    replies = bench.front.serve(came(canary("a")))
    assert (replies.outage is not None, bench.front.has_work) == (has_nonce, has_nonce)
    bench.mailbox.away = False
    bench.front.serve(NOTHING)
    assert bench.decided == ["a"]


def test_refusal_that_came_with_held_messages_is_replied_to_during_an_outage() -> None:
    bench = Bench(signed=True)
    bench.mailbox.away = True
    replies = bench.front.serve(came(canary("a"), call("unsigned")))
    (refused,) = replies.now
    assert refused.taken.message.task_id == "unsigned"
    assert "signature is missing" in str(refused.answer)
    assert [t.message.task_id for t in bench.front.unserved()] == ["a"]


def test_nothing_may_follow_a_signed_request() -> None:
    """The refusal of an unsigned one is answered, and that must send nothing either."""
    followed = envelope(body=body([], {"org": "acme"}, {"callbacks": [follower("shop.work")]}))
    (refused,) = Bench(signed=True).front.serve(came(followed)).now
    message = refused.taken.message
    assert (message.followers, message.objection) == (None, SIGNED)
    (refused,) = Bench().front.serve(came(followed)).now
    assert refused.taken.message.followers is None
    assert "follower_queues is empty" in str(refused.answer)


def test_call_is_carried_out_at_its_eta_and_not_past_its_expiry() -> None:
    bench = Bench()

    def at(seconds: float) -> str:
        return (NOW + timedelta(seconds=seconds)).isoformat()

    replies = bench.front.serve(
        came(
            call("due", eta=at(-1)), call("later", eta=at(5)), call("old", expires=at(-1)),
            call("far", eta=at(MOST_S + 1)),
        )
    )  # fmt: skip
    assert bench.decided == ["due"]
    outcomes = {r.taken.message.task_id: r.failure.state if r.failure else str(r.answer) for r in replies.now}
    assert outcomes["old"] == "REVOKED"
    assert f"above the maximum of {MOST_S}" in outcomes["far"]
    assert [t.message.task_id for t in bench.front.unserved()] == ["later"]


def test_lane_takes_no_message_during_an_outage_and_returns_its_messages_at_the_end() -> None:
    bench = Bench(signed=True)
    bench.mailbox.away = True
    bench.mailbox.deliveries = [came(call("never taken")), came(canary("a"), call("unsigned"))]
    stopping, pauses = threading.Event(), 0

    def waited() -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            stopping.set()

    bench.clock.waited = waited
    bench.lane.run(bench.clock, stopping, lambda: None)
    assert len(bench.mailbox.deliveries) == 1
    assert [r.taken.message.task_id for r in bench.mailbox.posted] == ["unsigned"]
    assert [t.message.task_id for t in bench.mailbox.handed_back] == ["a"]
    assert bench.mailbox.reconnected


@pytest.mark.parametrize("stops", [False, True])
def test_call_that_waits_for_a_thread_is_returned_when_the_process_stops(stops: bool) -> None:
    bench, stopping = Bench(), threading.Event()
    posting: Any = bench.mailbox
    unused: Any = None
    slow_path = SlowPath(unused, unused, posting, SharedThreads(1), ThreadPoolExecutor(1), stopping)
    if stops:
        stopping.set()
    taken = Taken(message=incoming(call("a")))
    assert slow_path.submit(taken, Release(claim_id=ClaimId("c-1"), condition=Condition.CLEAN))
    slow_path.close()
    assert bench.mailbox.handed_back == ([taken] if stops else [])
    assert [reply.taken for reply in bench.mailbox.posted] == ([] if stops else [taken])
