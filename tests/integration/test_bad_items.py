"""One bad item never affects another: answers, timers, marks, audit entries, watch events, messages
and the steps of passes are handled independently.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from redis import Redis
from sqlalchemy import insert, update
from structlog.testing import capture_logs

from pool.core.clock import SystemClock
from pool.core.errors import BrokenPromise, Refused, Transient
from pool.core.ids import ProfileName, RequestPk, WorkerId
from pool.core.records import ReplyTo
from pool.core.signing import InternalTasks
from pool.core.states import MoveReason, State
from pool.drivers.port import Gone, Pod
from pool.lifecycle import answering, claiming, effects, observing
from pool.metrics import Metrics
from pool.passes import fallback
from pool.store import Store, audit, now, passes, requests, rules, schema
from pool.store.sql import plus
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually
from tests.support.world import HeldMessages, World

BAD_IDS = ["", "\0", "\ud800"]


class PickyMessages(HeldMessages):
    """A broker that cannot store a result under some ids, as Celery cannot under an empty one."""

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        if to.task_id in BAD_IDS:
            raise ValueError(f"task_id must not be {to.task_id!r}")
        super().reply(to, answer)


def picky(world: World) -> PickyMessages:
    broker = PickyMessages()
    world.broker = broker
    world.deps = replace(world.deps, broker=broker)
    return broker


def older_row(world: World, pk: str, *, replies: Any, org: str = "mallory") -> RequestPk:
    """A waiting request past its deadline, as an older version wrote it."""
    with world.store.write() as tx:
        tx.execute(
            insert(schema.requests).values(
                pk=pk, org=org, request_id=pk, profile="default", lease_s=30, wait_s=1, state="waiting",
                created_at=plus(now(tx), -9.0),
                deadline_at=plus(now(tx), -8.0), replies=replies,
            )
        )  # fmt: skip
    return RequestPk(pk)


def row(world: World, pk: str) -> Any:
    return next(r for r in world.rows("requests") if r.pk == pk)


def entries(world: World, what: str = "answer_undeliverable") -> list[Any]:
    return [d for d in world.rows("deeds") if d.what == what]


def left_out(world: World, item: str) -> float:
    return float(world.deps.metrics.items_left_out.labels(item)._value.get())


@pytest.mark.parametrize("task_id", BAD_IDS)
def test_answer_that_cannot_be_delivered_is_marked_and_the_others_are_delivered(
    world: World, task_id: str
) -> None:
    broker = picky(world)
    bad = older_row(world, "r-bad", replies=[[task_id, ""]])
    good = older_row(world, "r-good", replies=[["t-good", ""]], org="acme")
    assert world.run_pass("reap")["outcome"] == "ok"
    assert [to.task_id for to, _ in broker.replies] == ["t-good"]
    assert row(world, good).replied_at is not None
    assert row(world, bad).replied_at is not None
    (entry,) = entries(world)
    assert entry.subject == "request r-bad"
    assert "ValueError" in entry.why
    world.pass_time(60)
    world.run_pass("reap")
    assert len(entries(world)) == 1
    assert left_out(world, "answer") == 1


def test_row_of_an_older_version_that_cannot_be_read_wedges_nothing(world: World) -> None:
    broker = picky(world)
    older_row(world, "r-bad", replies=[["only an id"]])
    older_row(world, "r-good", replies=[["t-good", ""]], org="acme")
    for _ in range(2):
        assert world.run_pass("reap")["outcome"] == "ok"
        world.pass_time(60)
    assert [to.task_id for to, _ in broker.replies] == ["t-good"]


def test_decided_row_of_an_older_version_that_cannot_be_read_is_marked_undeliverable(world: World) -> None:
    pk = older_row(world, "r-bad", replies=[["only an id"]])
    with world.store.write() as tx:
        R = schema.requests
        refused = {"state": "refused", "reason": "cancelled", "detail": "", "decided_at": plus(now(tx), -9.0)}
        tx.execute(update(R).where(R.c.pk == pk).values(**refused))
    assert world.run_pass("reap")["outcome"] == "ok"
    assert row(world, pk).replied_at is not None
    assert [entry.subject for entry in entries(world)] == ["request r-bad"]


def test_other_callers_of_the_same_request_are_answered(world: World) -> None:
    broker = picky(world)
    pk = older_row(world, "r-1", replies=[["", ""], ["t-2", ""]])
    assert claiming.time_out(world.deps, pk)
    assert [to.task_id for to, _ in broker.replies] == ["t-2"]
    assert row(world, pk).replied_at is not None


def test_outage_is_not_counted_against_an_answer(world: World) -> None:
    pk = older_row(world, "r-1", replies=[["t-1", ""]])
    world.broker.down = True
    assert claiming.time_out(world.deps, pk)
    assert row(world, pk).replied_at is None
    assert entries(world) == []
    world.broker.down = False
    world.pass_time(60)
    world.run_pass("reap")
    assert row(world, pk).replied_at is not None
    assert left_out(world, "answer") == 0


def test_answer_that_breaks_a_promise_is_logged_as_an_error_and_stops_no_other(world: World) -> None:
    world.warm(1)
    granted = world.granted(request_id="bad")
    bad = next(r.pk for r in world.rows("requests") if r.request_id == "bad")
    with world.store.write() as tx:
        C = schema.claims
        tx.execute(update(C).where(C.c.id == granted.claim_id).values(hot_at=None, lease_expires_at=None))
        tx.execute(update(schema.requests).where(schema.requests.c.pk == bad).values(replied_at=None))
    good = older_row(world, "r-good", replies=[["t-good", ""]])
    with capture_logs() as logged:
        assert effects.deliver_unreplied(world.deps, RequestPk(bad)) == 1
        assert claiming.time_out(world.deps, good)
    (line,) = [one for one in logged if one["event"] == "item_left_out"]
    assert line["log_level"] == "error"
    assert "BrokenPromise" in line["cause"]
    assert world.broker.answers_for("t-good")


def test_failed_matching_delays_no_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object) -> None:
        raise BrokenPromise("a bug in matching")

    pk = older_row(world, "r-1", replies=[["t-1", ""]])
    with world.store.write() as tx:
        R = schema.requests
        refused = {"state": "refused", "reason": "cancelled", "detail": "", "decided_at": now(tx)}
        tx.execute(update(R).where(R.c.pk == pk).values(**refused))
    with world.store.read() as tx:
        request = requests.get(tx, pk)
        assert request is not None
        decision = answering.of_row(tx, request)
    assert decision is not None
    monkeypatch.setattr(rules, "call", breaks)
    effects.finish(world.deps, effects.Effects(decided=[decision], again={ProfileName("default")}))
    assert world.broker.answers_for("t-1")
    assert left_out(world, "match") == 1


@pytest.mark.parametrize("text", ["a\0b", "half \ud800 a character", "é ok", "x" * 100_000])
def test_audit_entry_with_any_text_is_written(store: Store, text: str) -> None:

    with store.write() as tx:
        audit.record(tx, "request_refused", text, who=f"caller {text}", why=text)
    with store.read() as tx:
        (deed,) = audit.latest(tx, limit=5, refused=5)
        assert audit.of(tx, text) == [deed]
    assert "\0" not in deed.who
    assert len(deed.why) <= 4000


@pytest.mark.parametrize("claimed", [False, True])
def test_move_is_journalled_with_any_text_of_the_pod(world: World, claimed: bool) -> None:
    (worker,) = world.warm(1)
    if claimed:
        world.granted("acme")
    lost = world.deps.by(MoveReason.CONTAINER_ENDED, "its container said \0 and \ud800")
    observing.lose(world.deps, world.worker(worker), lost)
    assert world.state_of(worker) is State.LOST


def test_watch_event_that_fails_is_skipped_and_the_next_ones_are_observed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = world.warm(2)
    pods = dict(world.driver.pods)
    for name in (first, second):
        world.driver.cluster.take_away(name)
    stop, real = threading.Event(), observing.observe

    def observe(deps: Any, seen: Pod | Gone) -> None:
        if seen.name == first:
            raise KeyError(first)
        real(deps, seen)
        stop.set()

    class Watch:
        def watch(self, _: threading.Event) -> Iterator[Pod | Gone]:
            yield from (Gone(name=name, uid=pods[name].uid) for name in (first, second))

        def read(self, name: str) -> Pod | None:
            return None

    monkeypatch.setattr(observing, "observe", observe)
    observing.follow(replace(world.deps, make_driver=Watch), stop)  # type: ignore[arg-type]
    assert world.state_of(second) is State.LOST
    assert left_out(world, "watch_event") == 1


def test_activation_that_raises_any_error_fails_at_once_and_its_request_is_answered(world: World) -> None:
    class Bad:
        def activate(self, *_: object) -> None:
            raise UnicodeEncodeError("latin-1", "x", 0, 1, "a header that cannot be encoded")

        def healthy(self, *_: object) -> bool:
            return True

    world.profile(activation_path="/activate")
    world.configure(activation_tries=1)
    world.deps = replace(world.deps, worker_api=Bad())
    world.warm(1)
    task_id = world.waits()
    world.deliver("pool.activate")
    (answer,) = world.broker.answers_for(task_id)
    assert answer["reason"] == "activation_failed"


def test_step_that_raises_any_error_is_skipped_reported_once_and_the_pass_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = older_row(world, "r-1", replies=[["t-1", ""]])
    older_row(world, "r-2", replies=[["t-2", ""]])
    real = claiming.time_out

    def time_out(deps: Any, pk: RequestPk) -> bool:
        if pk == bad:
            raise BrokenPromise("a bug")
        return real(deps, pk)

    monkeypatch.setattr(claiming, "time_out", time_out)
    with capture_logs() as logged:
        runs = [world.run_pass("reap") for _ in range(3)]
    assert [run["outcome"] for run in runs] == ["ok"] * 3
    assert [run["actions"].get("waiter_timed_out", 0) for run in runs] == [1, 0, 0]
    assert world.broker.answers_for("t-2")
    (line,) = [one for one in logged if one["event"] == "step_skipped"]
    assert line["log_level"] == "error"
    assert left_out(world, "step") == 3
    with world.store.read() as tx:
        assert passes.get(tx, "reap").failures == 0


def test_profile_that_cannot_be_reconciled_blocks_no_other_profile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pool.passes import reconcile_warm

    world.profile("a-bad", warm_target=1)
    world.profile("good", warm_target=1)
    real = reconcile_warm.reconcile

    def reconcile(run: Any, name: Any, *more: Any) -> None:
        if name == "a-bad":
            raise BrokenPromise("a bug")
        real(run, name, *more)

    monkeypatch.setattr(reconcile_warm, "reconcile", reconcile)
    assert world.run_pass("reconcile_warm")["outcome"] == "ok"
    assert "good" in {w.profile for w in world.workers(State.SPAWNING)}


def test_fallback_retires_the_others_when_one_pod_cannot_be_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = world.warm(3)
    world.configure(
        surplus_ttl_s=1, profiles={"default": replace(world.deps.settings.profiles["default"], warm_target=0)}
    )
    world.pass_time(1000)
    real = world.driver.delete

    def delete(name: str, uid: str, *, grace_s: int | None = None) -> None:
        if name == names[0]:
            raise KeyError(name)
        real(name, uid, grace_s=grace_s)

    monkeypatch.setattr(world.driver, "delete", delete)
    assert fallback.reap_if_dark(world.deps, threading.Event())
    # By the contract of a broker, sending never raises.
    fallback.InlineRetireBroker(world.deps).send("pool.retire", worker_id=names[0])
    assert {n: world.state_of(n) for n in names} == {
        names[0]: State.DRAINING, names[1]: State.RETIRED, names[2]: State.RETIRED,
    }  # fmt: skip


class Background:
    """Timers on their own thread, and the errors that they logged."""

    def __init__(self) -> None:
        from pool.core.threads import Threads
        from tasks.background import Timers

        self.metrics = Metrics()
        self.left_out: list[tuple[str, object]] = []
        self.threads = Threads(SystemClock(), self.metrics.thread_restarted)
        self.timers = Timers(
            SystemClock(), self.threads, lambda item, name, exc: self.left_out.append((str(item), name))
        )


@pytest.fixture
def background() -> Iterator[Background]:
    made = Background()
    yield made
    made.timers.close()


def _fail() -> None:
    raise ValueError("a bug")


def test_timer_that_raises_any_error_ends_no_other_timer(background: Background) -> None:
    rang = threading.Event()
    background.timers.after(0.0, _fail)
    background.timers.after(0.01, rang.set)
    assert rang.wait(10)
    assert background.left_out == [("timer", "_fail")]
    assert background.metrics.thread_restarts.labels("timers")._value.get() == 0


def test_timer_that_is_due_sooner_does_not_wait_for_the_next_turn(
    background: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.background._TURN_S", 600.0)
    rang = threading.Event()
    background.timers.after(600.0, _fail)
    eventually(lambda: bool(background.timers._changed._waiters), within_s=10)  # type: ignore[attr-defined]
    background.timers.after(0.0, rang.set)
    assert rang.wait(10)


def test_one_bad_item_of_a_batch_is_skipped(background: Background) -> None:
    from pool.metrics.catalog import Item
    from tasks.background import Gathering

    dealt: list[Any] = []

    def deal(things: list[Any]) -> None:
        if "bad" in things:
            raise ValueError("one of them")
        dealt.extend(things)

    gathering = Gathering(background.timers, 0.01, deal, item=Item.AUDIT_ENTRY)
    for thing in ("a", "bad", "b"):
        gathering.add(thing)
    gathering.flush()
    assert dealt == ["a", "b"]
    assert background.left_out == [("audit_entry", "bad")]


def test_items_of_a_batch_that_met_an_outage_are_processed_after_it(background: Background) -> None:
    from pool.metrics.catalog import Item
    from tasks.background import Gathering

    dealt: list[Any] = []
    away = [Transient("database: gone")]

    def deal(things: list[Any]) -> None:
        if away:
            raise away.pop()
        dealt.extend(things)

    gathering = Gathering(background.timers, 0.01, deal, item=Item.MARK)
    gathering.add("mark")
    eventually(lambda: dealt == ["mark"])
    assert background.left_out == []


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def broker(redis_server: RedisServer, background: Background) -> Iterator[Any]:
    """The real one, on a real Redis."""
    from tasks.lane.following import Following
    from tasks.sending import CeleryBroker

    app = Celery(
        "test",
        broker=redis_server.url,
        backend=f"tasks.lane.replies:ReplyBackend+{redis_server.url}",
        set_as_current=False,
    )
    made = CeleryBroker(
        app,
        redis_server.url,
        "test",
        background.timers,
        background.threads,
        InternalTasks.of([b"m" * 32]).sign,
        Following(app, ()),
    )
    yield made
    made.close()
    app.close()


def test_reply_that_can_never_be_stored_is_refused_and_an_outage_is_not(
    broker: Any, redis_server: RedisServer
) -> None:
    with pytest.raises(Refused, match="undeliverable"):
        broker.reply(ReplyTo(task_id=""), {})
    with pytest.raises(Refused, match="undeliverable"):
        broker.reply(ReplyTo(task_id="t", address="warmpool.reply.\ud800"), {})
    with Redis.from_url(redis_server.url) as redis:
        redis.set("warmpool.reply.string", "not a list")
    with pytest.raises(Refused, match="undeliverable") as refused:
        broker.reply(ReplyTo(task_id="t", address="warmpool.reply.string"), {"token": "secret"})
    assert "secret" not in str(refused.value)
    broker.reply(ReplyTo(task_id="t", address="warmpool.reply.good"), {"outcome": "ok"})


def test_message_that_cannot_be_written_blocks_no_other(
    broker: Any, redis_server: RedisServer, background: Background
) -> None:
    with Redis.from_url(redis_server.url) as redis:
        redis.delete("fleet")
        broker.send("pool.no_such_task", worker_id=WorkerId("w"))
        broker.send("pool.spawn", worker_id=object())
        broker.send("pool.spawn", worker_id=WorkerId("w-1"))
        eventually(lambda: redis.llen("fleet") == 1)
    assert [item for item, _ in background.left_out] == ["message", "message"]
