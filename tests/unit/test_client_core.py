"""The client's pure parts: when it sends, how it reads answers, what it sends to the server."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from pool.client import AnswerOverdue, BrokerDown, ClaimLost, PoolClosed, Refused, TaskFailed, calls
from pool.client.core import LATE_LIMIT, LATE_S, Core
from pool.client.held import Worker
from pool.client.identity import Identity, identity, named
from pool.client.leases import BATCH, HeldLease
from pool.client.messages import REPR_LIMIT, Message, ReplyMessage
from pool.client.open_call import GiveUp, OpenCall, Pace, Send, Wait
from pool.core.brokerurl import redacted
from pool.core.errors import BrokenPromise, InvalidInput

WHO = Identity(client_id="billing.1", origin="billing1@here")
GRANT: dict[str, Any] = {
    "outcome": "granted",
    "claim_id": "c-1",
    "worker_id": "w-1",
    "epoch": 7,
    "pod": "w-1",
    "endpoint": "http://10.0.0.1:8080",
    "token": "very-secret",
    "lease_expires_at": "2031-05-01T12:00:00.000Z",
    "source": "warm",
}


def a_core() -> Core:
    return Core(WHO, Pace(), sooner=threading.Event())


def an_acquire(
    request_id: str | None = "r-1", *, wait_s: float = 0, grace_s: float = 40
) -> calls.PendingCall:
    arguments = calls.acquire_arguments("acme", "default", request_id, wait_s=wait_s, lease_s=30, ttl_s=None)
    return calls.acquire(arguments, grace_s=grace_s)


def asked(core: Core, call: calls.PendingCall | None = None) -> OpenCall:
    ask = core.open(call or an_acquire(), threading.Event(), 0.0)
    core.sending(ask)
    ask.sent(0.0)
    return ask


def answer(ask: OpenCall, result: object, status: str = "SUCCESS") -> str:
    return json.dumps({"task_id": ask.message.task_id, "status": status, "result": result, "traceback": None})


def held(core: Core, claim_id: str = "c-1", lease_s: float = 30, now: float = 0.0) -> HeldLease:
    grant = calls.granted({**GRANT, "claim_id": claim_id})
    return core.leases.hold(HeldLease(grant, lease_s=lease_s, signal=threading.Event()), now)


def is_set(ask: OpenCall) -> bool:
    assert isinstance(ask.signal, threading.Event)
    return ask.signal.is_set()


def seconds(ask: OpenCall, now: float) -> float:
    step = ask.step(now)
    assert isinstance(step, Wait)
    return step.seconds


class TestSending:
    def test_an_overdue_answer_is_requested_again_after_2_s_and_then_with_backoff_up_to_10_s(self) -> None:
        ask = asked(a_core(), an_acquire(wait_s=600))
        now, pauses = 0.0, []
        for _ in range(5):
            pauses.append(seconds(ask, now))
            now += pauses[-1]
            assert ask.step(now) == Send()
            ask.sent(now)
        assert pauses == [2, 4, 8, 10, 10]

    def test_every_sending_is_the_same_task_with_its_own_delivery_tag(self) -> None:
        core = a_core()
        ask = asked(core)
        first, second = (json.loads(core.sending(ask)) for _ in range(2))
        tags = {first["properties"].pop("delivery_tag"), second["properties"].pop("delivery_tag")}
        assert first == second
        assert len(tags) == 2

    def test_a_request_has_an_id_before_it_is_first_sent(self) -> None:
        first, second = (an_acquire(request_id=None).kwargs["request_id"] for _ in range(2))
        assert first
        assert second
        assert first != second

    def test_a_call_raises_when_its_wait_and_the_grace_have_passed(self) -> None:
        ask = asked(a_core(), an_acquire(wait_s=1, grace_s=0.5))
        assert seconds(ask, 1.4) == pytest.approx(0.1)
        step = ask.step(1.5)
        assert isinstance(step, GiveUp)
        assert isinstance(step.error, AnswerOverdue)

    @pytest.mark.parametrize("wait_s", [float("nan"), float("inf"), -5, "soon"])
    def test_an_invalid_wait_is_sent_to_the_server_and_never_blocks_forever(self, wait_s: Any) -> None:
        assert 40 <= an_acquire(wait_s=wait_s).patience_s <= 3640

    def test_a_failed_first_sending_is_retried_for_2_s_and_then_raises(self) -> None:
        ask = a_core().open(an_acquire(wait_s=600), threading.Event(), 0.0)
        now, tries = 0.0, 0
        while not isinstance(step := ask.step(now), GiveUp):
            if isinstance(step, Send):
                tries += 1
                ask.unsent(now, BrokerDown("refused"))
            else:
                now += step.seconds
        assert isinstance(step.error, BrokerDown)
        assert now == pytest.approx(2.0)
        assert tries > 3

    def test_a_failed_repeat_does_not_end_the_call_before_its_deadline(self) -> None:
        ask = asked(a_core(), an_acquire(wait_s=5, grace_s=5))
        ask.unsent(2.0, BrokerDown("connection refused"))
        assert seconds(ask, 2.0) <= 0.05
        step = ask.step(10.0)
        assert isinstance(step, GiveUp)
        assert isinstance(step.error, AnswerOverdue)
        assert "connection refused" in str(step.error)


class TestAnswers:
    def test_an_answer_wakes_only_its_own_caller(self) -> None:
        core = a_core()
        one, other = asked(core), asked(core, an_acquire("r-2"))
        assert core.answered(answer(one, GRANT), 1.0) == []
        assert is_set(one)
        assert not is_set(other)
        assert one.answer is not None
        assert one.answer.value() == GRANT

    def test_a_second_answer_changes_nothing(self) -> None:
        core = a_core()
        ask = asked(core)
        core.answered(answer(ask, GRANT), 1.0)
        assert core.answered(answer(ask, {"outcome": "refused"}), 1.0) == []
        assert ask.answer is not None
        assert ask.answer.value() == GRANT
        core.finish(ask)
        assert core.answered(answer(ask, GRANT), 2.0) == []

    @pytest.mark.parametrize(
        "raw", [b"{}", b"", b"\xff\xfe", b"[1]", b"nonsense", b'{"task_id": 3}', b'{"task_id": "x"}']
    )
    def test_a_message_that_is_no_answer_is_dropped(self, raw: bytes) -> None:
        core = a_core()
        ask = asked(core)
        assert core.answered(raw, 1.0) == []
        assert not is_set(ask)

    def test_a_refusal_carries_reason_detail_and_retry_hint(self) -> None:
        with pytest.raises(Refused) as caught:
            calls.granted(
                {"outcome": "refused", "reason": "org_cap", "retry_after_s": 1.5, "detail": "2 of 2"}
            )
        assert (caught.value.reason, caught.value.retry_after_s, caught.value.detail) == (
            "org_cap",
            1.5,
            "2 of 2",
        )

    def test_a_failed_task_is_reported_with_its_error(self) -> None:
        core = a_core()
        ask = asked(core)
        core.answered(answer(ask, {"exc_type": "OSError", "exc_message": ["away"]}, "FAILURE"), 1.0)
        assert ask.answer is not None
        with pytest.raises(TaskFailed, match="OSError: away"):
            ask.answer.value()

    @pytest.mark.parametrize("missing", sorted(set(GRANT) - {"outcome"}))
    def test_a_grant_that_lacks_something_is_a_broken_promise(self, missing: str) -> None:
        with pytest.raises(BrokenPromise, match=missing):
            calls.granted({k: v for k, v in GRANT.items() if k != missing})

    @pytest.mark.parametrize("result", [None, [], "yes", {"renewed": 3, "gone": {}}, {"gone": {}}])
    def test_a_renewal_of_another_shape_is_a_broken_promise(self, result: object) -> None:
        with pytest.raises(BrokenPromise):
            calls.renewal(result)


class TestLeaving:
    def test_a_caller_that_leaves_cancels_its_request(self) -> None:
        core = a_core()
        assert core.abandon(asked(core), 1.0) == [calls.cancel("acme", "r-1")]

    def test_a_late_grant_is_released_once(self) -> None:
        core = a_core()
        ask = asked(core)
        core.abandon(ask, 1.0)
        assert core.answered(answer(ask, GRANT), 2.0) == [calls.release("c-1", "clean")]
        assert core.answered(answer(ask, GRANT), 3.0) == []

    def test_a_late_refusal_sends_nothing(self) -> None:
        core = a_core()
        ask = asked(core)
        core.abandon(ask, 1.0)
        assert core.answered(answer(ask, {"outcome": "refused", "reason": "cancelled"}), 2.0) == []

    def test_a_caller_that_leaves_after_its_grant_arrived_releases_it(self) -> None:
        core = a_core()
        ask = asked(core)
        core.answered(answer(ask, GRANT), 1.0)
        held(core)
        assert core.abandon(ask, 1.0) == [calls.release("c-1", "clean")]
        assert not core.leases.holds("c-1")

    def test_a_late_grant_is_kept_for_a_repeated_call_of_the_same_request(self) -> None:
        core = a_core()
        left, again = asked(core), asked(core)
        core.abandon(left, 1.0)
        core.answered(answer(again, GRANT), 2.0)
        assert core.answered(answer(left, GRANT), 2.0) == [], "answered, not yet taken"
        second = asked(core, an_acquire("r-2"))
        core.abandon(second, 3.0)
        held(core, "c-2")
        assert core.answered(answer(second, {**GRANT, "claim_id": "c-2"}), 4.0) == [], "already held"

    def test_an_unsent_request_is_not_cancelled_but_its_grant_is_released(self) -> None:
        core = a_core()
        ask = core.open(an_acquire(), threading.Event(), 0.0)
        core.sending(ask)
        ask.unsent(1.0, BrokerDown("refused"))
        assert core.abandon(ask, 2.0) == []
        assert core.answered(answer(ask, GRANT), 3.0) == [calls.release("c-1", "clean")]

    def test_a_request_interrupted_while_being_sent_is_cancelled(self) -> None:
        core = a_core()
        ask = core.open(an_acquire(), threading.Event(), 0.0)
        core.sending(ask)
        assert core.abandon(ask, 0.1) == [calls.cancel("acme", "r-1")]

    def test_leaving_a_release_or_a_renewal_sends_nothing(self) -> None:
        core = a_core()
        for call in (calls.release("c-1", "clean"), calls.renew(["c-1"], patience_s=1)):
            assert core.abandon(asked(core, call), 1.0) == []

    def test_the_memory_of_left_callers_is_bounded(self) -> None:
        core = a_core()
        first = asked(core)
        core.abandon(first, 0.0)
        for _ in range(LATE_LIMIT):
            core.abandon(asked(core), 1.0)
        assert core.answered(answer(first, GRANT), 2.0) == []
        old = asked(core)
        core.abandon(old, 2.0)
        core.abandon(asked(core), 3.0 + LATE_S)
        assert core.answered(answer(old, GRANT), 3.0 + LATE_S) == []


class TestHolding:
    def test_a_thousand_claims_are_renewed_by_one_call(self) -> None:
        core = a_core()
        ids = [f"c-{i}" for i in range(1000)]
        for claim_id in ids:
            held(core, claim_id)
        (call,) = core.leases.renewals()
        assert call.task == "pool.renew"
        assert call.kwargs == {"claim_ids": ids}

    def test_no_call_has_more_claims_than_the_server_takes(self) -> None:
        core = a_core()
        for i in range(BATCH + 1):
            held(core, f"c-{i}")
        sizes = [len(call.kwargs["claim_ids"]) for call in core.leases.renewals()]  # type: ignore[arg-type]
        assert sizes == [BATCH, 1]

    def test_a_round_comes_within_a_third_of_the_shortest_lease(self) -> None:
        core = a_core()
        assert core.leases.due_in(0.0) is None
        held(core, "c-1", lease_s=300)
        assert 50 <= (core.leases.due_in(0.0) or 0) <= 100
        held(core, "c-2", lease_s=30)
        assert 5 <= (core.leases.due_in(0.0) or 0) <= 10
        core.leases.rest(100.0)
        assert 5 <= (core.leases.due_in(100.0) or 0) <= 10

    def test_a_shorter_lease_wakes_the_renewer_and_a_longer_one_does_not(self) -> None:
        sooner = threading.Event()
        core = Core(WHO, Pace(), sooner=sooner)
        held(core, "c-1", lease_s=30)
        assert sooner.is_set()
        sooner.clear()
        held(core, "c-2", lease_s=300)
        assert not sooner.is_set()
        held(core, "c-3", lease_s=6)
        assert sooner.is_set()

    def test_a_claim_made_after_all_others_were_released_is_renewed(self) -> None:
        sooner = threading.Event()
        core = Core(WHO, Pace(), sooner=sooner)
        held(core, "c-1", lease_s=30)
        core.release("c-1", "clean")
        sooner.clear()
        held(core, "c-2", lease_s=30, now=8.0)
        assert sooner.is_set()
        assert 5 <= (core.leases.due_in(8.0) or 0) <= 10

    def test_an_unanswered_round_is_retried_within_10_s_for_any_lease(self) -> None:
        core = a_core()
        lease = held(core, lease_s=3600)
        core.leases.retry(0.0)
        assert 5 <= (core.leases.due_in(0.0) or 0) <= 10
        assert lease.cause is None

    def test_a_lost_claim_raises_its_cause_at_the_next_use(self) -> None:
        core = a_core()
        worker = Worker(None, held(core))  # type: ignore[arg-type]
        assert worker.auth["Authorization"] == "Bearer very-secret"
        core.renewed({"renewed": {}, "gone": {"c-1": "its pod was evicted"}})
        assert worker.lost
        assert worker.wait_lost(0)
        assert worker.cause == "its pod was evicted"
        for use in ("endpoint", "token", "auth"):
            with pytest.raises(ClaimLost, match="its pod was evicted"):
                getattr(worker, use)
        assert core.leases.renewals() == []

    def test_a_renewal_extends_the_lease_and_reports_leaving_workers(self) -> None:
        core = a_core()
        worker = Worker(None, held(core))  # type: ignore[arg-type]
        core.renewed(
            {"renewed": {"c-1": "2031-05-01T12:00:30Z"}, "gone": {}, "leaving": {"c-1": "node drained"}}
        )
        assert worker.lease_expires_at.isoformat() == "2031-05-01T12:00:30+00:00"
        assert worker.leaving == "node drained"
        assert not worker.lost
        assert worker.endpoint
        core.renewed({"renewed": {"c-1": "2031-05-01T12:00:40Z"}, "gone": {}})
        assert worker.leaving is None

    def test_a_renewal_reports_that_a_worker_is_unhealthy_and_healthy_again(self) -> None:
        core = a_core()
        worker = Worker(None, held(core))  # type: ignore[arg-type]
        renewed = {"renewed": {"c-1": "2031-05-01T12:00:30Z"}, "gone": {}}
        core.renewed({**renewed, "unhealthy": {"c-1": "3 consecutive probes failed"}})
        assert worker.unhealthy == "3 consecutive probes failed"
        assert not worker.lost
        assert worker.endpoint
        core.renewed(renewed)
        assert worker.unhealthy is None

    def test_a_claim_released_here_meanwhile_is_not_reported_as_lost(self) -> None:
        core = a_core()
        lease = held(core)
        core.release("c-1", "clean")
        core.renewed({"renewed": {}, "gone": {"c-1": "released"}})
        assert lease.cause is None

    def test_a_renewal_that_does_not_mention_a_claim_ends_nothing(self) -> None:
        core = a_core()
        lease = held(core)
        core.renewed({"renewed": {}, "gone": {}})
        assert lease.cause is None
        assert core.leases.holds("c-1")

    def test_a_request_asked_twice_is_one_claim_that_is_lost_for_both(self) -> None:
        core = a_core()
        one, other = Worker(None, held(core)), Worker(None, held(core))  # type: ignore[arg-type]
        core.renewed({"renewed": {}, "gone": {"c-1": "expired"}})
        assert one.lost
        assert other.lost

    def test_closing_wakes_every_caller_and_releases_every_claim(self) -> None:
        core = a_core()
        ask = asked(core)
        held(core, "c-1")
        Worker(None, held(core, "c-2")).taint()  # type: ignore[arg-type]
        assert core.close() == [calls.release("c-1", "clean"), calls.release("c-2", "tainted")]
        assert is_set(ask)
        step = ask.step(1.0)
        assert isinstance(step, GiveUp)
        assert isinstance(step.error, PoolClosed)
        with pytest.raises(PoolClosed):
            asked(core)

    def test_the_token_is_never_shown(self) -> None:
        lease = held(a_core())
        worker = Worker(None, lease)  # type: ignore[arg-type]
        assert "very-secret" not in f"{worker!r} {worker} {lease.grant!r} {lease!r}"


class TestWire:
    def test_flower_shows_the_arguments_as_shortened_by_celery(self) -> None:
        kwargs = {"claim_ids": [f"c-{i}" for i in range(1000)]}
        message = Message(task="pool.renew", kwargs=kwargs, task_id="t-1", origin="x", reply_to="y")
        sent = json.loads(message.encoded("tag"))
        assert sent["headers"]["kwargsrepr"].startswith("{'claim_ids': ['c-0', 'c-1'")
        assert len(sent["headers"]["kwargsrepr"]) == REPR_LIMIT
        assert json.loads(base64.b64decode(sent["body"]))[1] == kwargs

    def test_a_call_without_a_waiting_caller_has_no_reply_address_and_no_stored_result(self) -> None:
        (note,) = a_core().notifications([calls.release("c-1", "clean")])
        sent = json.loads(note)
        assert sent["properties"]["reply_to"] == ""
        assert sent["headers"]["ignore_result"] is True

    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://:hunter2@redis.example:6379/0", "redis://:***@redis.example:6379/0"),
            ("rediss://me:hunter2@redis.example/1", "rediss://me:***@redis.example/1"),
            ("redis://redis.example:6379?password=hunter2", "redis://redis.example:6379"),
            ("unix://me:hunter2@/run/redis.sock?db=0", "unix://me:***@/run/redis.sock"),
        ],
    )
    def test_a_broker_url_is_shown_without_its_password(self, url: str, shown: str) -> None:
        assert redacted(url) == shown

    def test_no_two_clients_share_a_reply_list_and_a_name_ends_at_a_dot(self) -> None:
        one, other = identity("billing"), identity("billing")
        assert one.reply_to != other.reply_to
        assert one.reply_to.startswith("warmpool.reply.billing.")

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "x" * 65])
    def test_a_name_that_would_match_anothers_reply_list_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidInput, match="name"):
            named(name)


def test_importing_the_client_imports_neither_redis_nor_celery_nor_asyncio() -> None:
    code = "import pool.client, sys; print({'redis', 'celery', 'kombu', 'sqlalchemy', 'asyncio', 'kubernetes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("raised", "is_answer"), [("Transient", False), ("ConnectionError", False), ("ValueError", True)]
)
def test_an_outage_of_the_server_is_no_answer_and_any_other_result_is(raised: str, is_answer: bool) -> None:
    meta = {"task_id": "t", "status": "FAILURE", "result": {"exc_type": raised, "exc_message": ["no"]}}
    assert (ReplyMessage.parse(json.dumps(meta)) is not None) is is_answer
