"""The whole system as services use it: real processes, a real broker, the client and plain Celery."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self
from uuid import uuid4

import pytest
import redis
from celery import Celery
from celery.exceptions import TaskRevokedError
from sqlalchemy import func, select

from pool.client import AsyncPool, Pool, Refused
from pool.client.messages import Message
from pool.core.names import TAKEN_KEY
from pool.passes import PASSES
from pool.store import passes, schema
from tests.support.local_ground import call
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, PATIENCE_S, Service, System
from tests.support.waiting import eventually

SETTINGS: dict[str, Any] = {
    "profiles": {
        "default": {"warm_target": 3},
        "bound": {
            "warm_target": 1,
            "activation_path": "/activate",
            "activation_payload": {"org": "{org}", "region": "{values.region}"},
        },
        "broken": {"warm_target": 1, "activation_path": "/activate", "activation_payload": {"fail": True}},
    },
    "orgs": {"narrow": {"cap": 1}, "bound": {"values": {"region": "north"}}},
}
# For calls that another caller must end: long enough for a busy machine, short enough to detect a
# lost wake-up.
SOON_S = 20


class EventListener:
    """All events of Celery, as Flower receives them."""

    def __init__(self, app: Celery) -> None:
        self.heard: list[dict[str, Any]] = []
        self._app = app
        self._receiver: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Listen. Workers send a heartbeat every two seconds, so all events after the first one are
        received.
        """
        self._thread.start()
        eventually(lambda: self.heard, within_s=SOON_S)
        return self

    def of(self, task_id: str) -> list[str]:
        return [event["type"] for event in list(self.heard) if event.get("uuid") == task_id]

    def succeeded(self, task_id: str) -> bool:
        return "task-succeeded" in self.of(task_id)

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(SOON_S)

    def _run(self) -> None:
        with self._app.connection_for_read() as connection:
            self._receiver = self._app.events.Receiver(connection, handlers={"*": self.heard.append})
            self._receiver.capture(limit=None, timeout=None, wakeup=False)


@pytest.fixture(scope="module")
def system(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = postgres.create_database("end_to_end")
    with System(tmp_path_factory.mktemp("system"), url, settings=SETTINGS) as made:
        made.run(*EVERYTHING)
        for profile, settings in SETTINGS["profiles"].items():
            made.wait_idle(settings["warm_target"], profile=profile)
        yield made
        assert not made.wrongs()
        assert all(part.alive() for part in made.parts.values()), made.tails()


@pytest.fixture
def pool(system: System) -> Iterator[Pool]:
    with Pool(system.redis.url, name="test") as made:
        yield made


@pytest.fixture
def service(system: System) -> Iterator[Service]:
    made = Service(system.redis.url)
    yield made
    made.close()


@contextmanager
def no_pass_runs(system: System) -> Iterator[None]:
    """What happens in this block is caused by its event, not by a pass."""
    for paused in (True, False):
        with system.store.write() as tx:
            for name in PASSES:
                passes.set_paused(tx, name, paused=paused, by="test")
        if paused:
            yield


def rows(system: System, table: Any) -> int:
    with system.store.read() as tx:
        return int(tx.execute(select(func.count()).select_from(table)).scalar_one())


def states_of(system: System, worker_id: str) -> str:
    with system.store.read() as tx:
        return str(
            tx.execute(select(schema.workers.c.state).where(schema.workers.c.id == worker_id)).scalar_one()
        )


def test_a_released_worker_is_granted_again_to_its_org(system: System, pool: Pool) -> None:
    with pool.acquire("acme", wait_s=SOON_S) as first:
        status, echo = call(first, "POST", "/echo", first.auth, "hello")
        assert (status, echo["body"], echo["worker"]) == (200, "hello", first.worker_id)
        wrong = {**first.auth, "Authorization": "Bearer wrong"}
        assert call(first, "GET", "/echo", wrong)[0] == 401
        assert call(first, "GET", "/echo")[0] == 401
        used = first.auth
    assert states_of(system, first.worker_id) == "hot_idle"
    with pool.acquire("acme", wait_s=SOON_S) as second:
        assert (second.worker_id, second.source) == (first.worker_id, "hot_idle")
        assert second.epoch > first.epoch
        assert call(second, "GET", "/echo", second.auth)[0] == 200
        # The first holder's token ended with its claim.
        assert call(second, "GET", "/echo", used)[0] in (401, 409)
    with pool.acquire("zenith", wait_s=SOON_S) as other:
        assert other.worker_id != first.worker_id


def test_the_asyncio_client_does_the_same(system: System) -> None:
    async def use() -> tuple[str, str, int]:
        async with AsyncPool(system.redis.url) as pool:
            async with pool.acquire("twin", wait_s=SOON_S) as first:
                status = (await asyncio.to_thread(call, first, "GET", "/echo", first.auth))[0]
            async with pool.acquire("twin", wait_s=SOON_S) as second:
                assert second.source == "hot_idle"
            return first.worker_id, second.worker_id, status

    first, second, status = asyncio.run(use())
    assert (status, first) == (200, second)
    assert system.live_claims(org="twin") == []


def test_a_plain_celery_app_is_served(system: System, service: Service) -> None:
    granted = service.granted("plain", request_id="one", lease_s=30)
    assert set(granted) == {
        "outcome", "claim_id", "worker_id", "epoch", "pod", "endpoint", "token", "lease_expires_at", "source",
    }  # fmt: skip
    claim_id = granted["claim_id"]
    again = service.granted("plain", request_id="one", lease_s=30)
    assert {k: again[k] for k in ("claim_id", "token", "epoch")} == {
        k: granted[k] for k in ("claim_id", "token", "epoch")
    }
    renewed = service.call("renew", claim_ids=[claim_id, "c-none"])
    assert renewed["renewed"][claim_id] > granted["lease_expires_at"]
    assert renewed["gone"] == {"c-none": "unknown_claim"}
    assert service.call("cancel", org="plain", request_id="one") == {"outcome": "already_answered"}
    assert service.call("release", claim_id=claim_id) == {"outcome": "released"}
    assert service.call("release", claim_id, "tainted") == {"outcome": "already_released"}
    assert service.call("release", claim_id="c-none") == {"outcome": "unknown_claim"}
    assert service.call("cancel", org="plain", request_id="none") == {"outcome": "unknown_request"}
    assert service.call("renew", [claim_id])["gone"] == {claim_id: "released"}
    spent = service.call("acquire", org="plain", request_id="one", lease_s=30, wait_s=SOON_S)
    assert (spent["outcome"], spent["reason"]) == ("refused", "request_spent")
    other = service.call("acquire", org="plain", request_id="one", lease_s=31, wait_s=SOON_S)
    assert (other["outcome"], other["reason"]) == ("refused", "invalid")


def test_a_tainted_release_retires_the_worker(system: System, pool: Pool) -> None:
    with pool.acquire("careful", wait_s=SOON_S) as worker:
        worker.taint()
    eventually(lambda: states_of(system, worker.worker_id) == "retired", within_s=SOON_S)
    assert worker.worker_id not in {pod.worker_id for pod in [pool.acquire("careful", wait_s=SOON_S)]}


def test_a_waiter_is_answered_by_the_release_itself(system: System, pool: Pool) -> None:
    with pool.acquire("narrow", wait_s=SOON_S) as held, ThreadPoolExecutor() as threads, no_pass_runs(system):
        waiting = threads.submit(pool.acquire, "narrow", wait_s=60, request_id="event")
        eventually(lambda: waiters(system, "narrow") == 1)
        held.release()
        served = waiting.result(timeout=SOON_S)
        assert served.worker_id == held.worker_id
        served.release()


def test_a_wait_that_times_out_is_answered_in_time_without_a_pass(system: System, pool: Pool) -> None:
    with pool.acquire("narrow", wait_s=SOON_S), no_pass_runs(system):
        with pytest.raises(Refused) as refused:
            pool.acquire("narrow", wait_s=1)
        assert refused.value.reason == "wait_timeout"
        assert refused.value.retry_after_s is not None
        with pytest.raises(Refused) as refused:
            pool.acquire("narrow")
        assert refused.value.reason == "org_cap"


def test_a_waiting_request_that_was_sent_under_two_task_ids_answers_both(
    system: System, service: Service
) -> None:
    held = service.granted("narrow")
    asked = {"org": "narrow", "request_id": "twice", "wait_s": 60}
    one, two = service.send("acquire", **asked), service.send("acquire", **asked)
    eventually(lambda: waiters(system, "narrow") == 1)
    eventually(lambda: replies_of(system, "narrow", "twice") == 2)
    service.call("release", claim_id=held["claim_id"])
    first, second = one.get(timeout=SOON_S), two.get(timeout=SOON_S)
    assert first == second
    assert first["outcome"] == "granted"
    service.call("release", claim_id=first["claim_id"])


def test_a_cancelled_waiter_is_answered_and_not_served(system: System, service: Service) -> None:
    held = service.granted("narrow")
    waiting = service.send("acquire", org="narrow", request_id="leaves", wait_s=60)
    eventually(lambda: waiters(system, "narrow") == 1)
    assert service.call("cancel", org="narrow", request_id="leaves") == {"outcome": "cancelled"}
    answer = waiting.get(timeout=SOON_S)
    assert (answer["outcome"], answer["reason"]) == ("refused", "cancelled")
    service.call("release", claim_id=held["claim_id"])
    assert system.live_claims(org="narrow") == []


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "field"),
    [
        ("acquire", (), {"org": "acme", "colour": "red"}, "colour"),
        ("acquire", (), {}, "org"),
        ("acquire", (), {"org": None}, "org"),
        ("acquire", (), {"org": ["acme"]}, "org"),
        ("acquire", (), {"org": "a/b"}, "org"),
        ("acquire", ("acme",), {"org": "acme"}, "org"),
        ("acquire", (), {"org": "acme", "profile": 7}, "profile"),
        ("acquire", (), {"org": "acme", "request_id": {"a": 1}}, "request_id"),
        ("acquire", (), {"org": "acme", "lease_s": 1}, "lease_s"),
        ("acquire", (), {"org": "acme", "lease_s": "30"}, "lease_s"),
        ("acquire", (), {"org": "acme", "wait_s": 1e300}, "wait_s"),
        ("acquire", (), {"org": "acme", "wait_s": float("inf")}, "wait_s"),
        ("acquire", (), {"org": "acme", "wait_s": float("nan")}, "wait_s"),
        ("acquire", (), {"org": "acme", "wait_s": True}, "wait_s"),
        ("acquire", (), {"org": "acme", "ttl_s": -1}, "ttl_s"),
        ("acquire", tuple("abcdefg"), {}, "arguments"),
        ("renew", (), {"claim_ids": "c-1"}, "claim_ids"),
        ("renew", (), {"claim_ids": [{}]}, "claim_ids"),
        ("renew", (), {}, "claim_ids"),
        ("release", (), {}, "claim_id"),
        ("release", (), {"claim_id": "c-1", "condition": "dirty"}, "condition"),
        ("release", (), {"claim_id": "c-1", "condition": ["clean"]}, "condition"),
        ("cancel", (), {"org": "acme"}, "request_id"),
        ("cancel", (), {"org": 5, "request_id": "r"}, "org"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_the_field_and_nothing_is_written(
    system: System, service: Service, task: str, args: Any, kwargs: dict[str, Any], field: str
) -> None:
    before, pid = rows(system, schema.requests), system["acquire"].pid
    answer = service.call(task, *args, **kwargs)
    assert (answer["outcome"], answer["reason"]) == ("refused", "invalid"), answer
    assert answer["detail"].startswith(f"{field} "), answer
    assert rows(system, schema.requests) == before
    assert (system["acquire"].alive(), system["acquire"].pid) == (True, pid)


def test_an_unknown_profile_is_refused_by_its_name(service: Service) -> None:
    answer = service.call("acquire", org="acme", profile="nowhere")
    assert (answer["outcome"], answer["reason"]) == ("refused", "unknown_profile")
    assert "nowhere" in answer["detail"]


def test_unknown_messages_affect_no_other_caller(system: System, service: Service) -> None:
    pid = system["acquire"].pid
    service.send("nothing")
    service.app.send_task("pool.acquire", kwargs={"org": "pickled"}, queue="acquire", serializer="pickle")
    with redis.Redis.from_url(system.redis.url) as raw:
        headers = envelope()["headers"]
        changes: tuple[dict[str, Any], ...] = (
            *(
                {"body": base64.b64encode(body).decode()}
                for body in (b"{not json", b"\xff\xfe", b"[]", b'"text"')
            ),
            {"body": "not base64"},
            {"body": None},
            {"content-type": "application/x-yaml"},
            {"content-encoding": "no-such-encoding"},
            {"headers": {}},
            {"headers": None},
            {"headers": {**headers, "task": {}}},
            {"headers": {**headers, "timelimit": "x"}},
            {"headers": {**headers, "eta": "never"}},
            {},
        )
        for change in changes:
            raw.lpush("acquire", json.dumps(envelope() | change))
    granted = service.granted("acme")
    service.call("release", claim_id=granted["claim_id"])
    assert (system["acquire"].alive(), system["acquire"].pid) == (True, pid)
    with redis.Redis.from_url(system.redis.url) as raw:
        eventually(lambda: not raw.llen("acquire") and not raw.hlen(TAKEN_KEY), within_s=SOON_S)
    with system.store.read() as tx:
        assert not tx.execute(select(schema.requests).where(schema.requests.c.org == "pickled")).all()


def test_eta_and_expires_of_celery_are_respected(system: System, service: Service) -> None:
    task = service.app.signature("pool.acquire", kwargs={"org": "unusual", "wait_s": SOON_S}, queue="acquire")
    sent = [
        task.apply_async(countdown=0.2),
        task.apply_async(expires=600),
    ]
    answers = [result.get(timeout=PATIENCE_S) for result in sent]
    assert {answer["outcome"] for answer in answers} == {"granted"}, answers
    assert len({answer["claim_id"] for answer in answers}) == 2
    expired = task.apply_async(expires=datetime.now(UTC) - timedelta(seconds=5))
    with pytest.raises(TaskRevokedError):
        expired.get(timeout=PATIENCE_S)
    far = task.apply_async(countdown=600).get(timeout=PATIENCE_S)
    assert (far["outcome"], far["reason"]) == ("refused", "invalid")
    assert far["detail"].startswith("eta: ")
    for answer in answers:
        assert service.call("release", claim_id=answer["claim_id"]) == {"outcome": "released"}


def test_workers_run_without_mingle_and_gossip(system: System) -> None:
    """Celery ignores unknown options, so this checks their effect."""
    assert "mingle: " not in system["acquire"].log()
    with redis.Redis.from_url(system.redis.url) as raw:
        assert not raw.keys("_kombu.binding.celeryev*")


def test_an_answer_that_cannot_be_written_affects_no_other_caller(system: System, service: Service) -> None:
    message = Message(
        task="pool.acquire",
        kwargs={"org": "spoilt"},
        task_id="t-spoilt",
        origin="test",
        reply_to="warmpool.reply.x",
    )
    system.wait_idle(2)  # it does not wait, and a refused caller holds nothing
    with redis.Redis.from_url(system.redis.url) as raw:
        raw.set("warmpool.reply.x", "no list")
        raw.lpush("acquire", message.encoded("tag"))
        granted = service.granted("acme")
        service.call("release", claim_id=granted["claim_id"])
        eventually(lambda: not raw.llen("acquire") and not raw.hlen(TAKEN_KEY), within_s=SOON_S)
        # It was taken first; it need not be served first.
        eventually(lambda: system.live_claims(org="spoilt"), within_s=SOON_S)
        raw.delete("warmpool.reply.x")
    for claim_id in system.live_claims(org="spoilt"):
        service.call("release", claim_id=claim_id)


def test_a_profile_with_activation_gives_an_activated_worker(system: System, pool: Pool) -> None:
    with pool.acquire("bound", "bound", wait_s=SOON_S) as worker:
        status, echo = call(worker, "GET", "/echo", worker.auth)
        assert status == 200
        assert (echo["org"], echo["activation"]["region"]) == ("bound", "north")
    moves = [e.to_state for e in system.entries() if e.worker_id == worker.worker_id]
    assert moves[:5] == ["spawning", "idle", "reserved", "activating", "hot"]
    with pool.acquire("bound", "bound", wait_s=SOON_S) as again:
        assert (again.worker_id, again.source) == (worker.worker_id, "hot_idle")


def test_activations_that_fail_are_answered_after_the_tries_and_retire_their_workers(
    system: System, service: Service
) -> None:
    answer = service.call("acquire", org="unlucky", profile="broken", wait_s=SOON_S)
    assert (answer["outcome"], answer["reason"]) == ("refused", "activation_failed"), answer
    tried = {e.worker_id for e in system.entries() if e.org == "unlucky"}
    assert len(tried) == 2  # activation_tries
    eventually(lambda: {states_of(system, w) for w in tried} == {"retired"}, within_s=SOON_S)
    assert system.live_claims(org="unlucky") == []


def test_deferred_answers_end_in_an_event_and_no_token_is_in_any_event_log_or_file(
    system: System, service: Service, pool: Pool
) -> None:
    with EventListener(service.app) as listener:
        by_client = pool.acquire("secret", wait_s=SOON_S)
        at_once = service.send("acquire", org="secret", wait_s=SOON_S)
        tokens = [by_client.token, at_once.get(timeout=PATIENCE_S)["token"]]
        held = service.granted("narrow")
        deferred = service.send("acquire", org="narrow", wait_s=60)
        eventually(lambda: waiters(system, "narrow") == 1)
        service.call("release", claim_id=held["claim_id"])
        activated = service.send("acquire", org="secret", profile="bound", wait_s=SOON_S)
        answers = [deferred.get(timeout=PATIENCE_S), activated.get(timeout=PATIENCE_S)]
        tokens += [held["token"], *(answer["token"] for answer in answers)]
        for task_id in (at_once.id, deferred.id, activated.id):
            eventually(partial(listener.succeeded, task_id), within_s=SOON_S)
            assert listener.of(task_id).count("task-succeeded") == 1
        for answer in answers:
            service.call("release", claim_id=answer["claim_id"])
        by_client.release()
    told = repr(listener.heard)
    kept = {file: file.read_bytes() for file in system.folder.rglob("*") if file.is_file()}
    assert system["acquire"].log_file in kept
    for token in tokens:
        assert len(token) >= 32
        assert token not in told
        assert not [file for file, text in kept.items() if token.encode() in text]


def waiters(system: System, org: str) -> int:
    R = schema.requests
    with system.store.read() as tx:
        found = select(func.count()).select_from(R).where(R.c.org == org, R.c.state == "waiting")
        return int(tx.execute(found).scalar_one())


def replies_of(system: System, org: str, request_id: str) -> int:
    R = schema.requests
    with system.store.read() as tx:
        return len(
            tx.execute(select(R.c.replies).where(R.c.org == org, R.c.request_id == request_id)).scalar_one()
        )


def envelope() -> dict[str, Any]:
    """A valid message, to be corrupted. It has its own delivery tag: to acknowledge one does not
    acknowledge another.
    """
    message = Message(task="pool.acquire", kwargs={"org": "acme"}, task_id="t-1", origin="test")
    return dict(json.loads(message.encoded(f"tag-{uuid4()}")))


def test_raising_an_orgs_cap_serves_its_waiters_by_the_event(system: System, service: Service) -> None:
    """Without beat, so that no pass runs."""
    system.command("org", "set", "raised", "--cap", "1")
    with system["beat"].frozen():
        first = service.granted("raised", ttl_s=0)
        waiting = service.send("acquire", org="raised", wait_s=60, ttl_s=0)
        eventually(lambda: rows_waiting(system, "raised") == 1, within_s=SOON_S)
        system.command("org", "set", "raised", "--cap", "2")
        answer = waiting.get(timeout=SOON_S)
    assert answer["outcome"] == "granted"
    for granted in (first, answer):
        service.call("release", granted["claim_id"])


def rows_waiting(system: System, org: str) -> int:
    R = schema.requests
    with system.store.read() as tx:
        found = select(func.count()).select_from(R).where(R.c.org == org, R.c.state == "waiting")
        return int(tx.execute(found).scalar_one())
