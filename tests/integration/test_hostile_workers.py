"""A worker that answers slowly, endlessly or wrongly affects only its own item in a pass. Real
sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import update

from pool.core.clock import SystemClock
from pool.core.errors import Refused, Transient
from pool.core.states import State
from pool.drivers import boundedhttp
from pool.drivers.port import Word
from pool.drivers.self_report import read_self_report
from pool.drivers.workerapi import HttpWorkerApi
from pool.store import schema
from tests.support.hostile_worker import Habit, HostileWorker, hostile
from tests.support.world import World

# An endless answer that is read to its end hangs the test: that is how it fails.
pytestmark = pytest.mark.timeout(60, method="signal")

TIMEOUT_S = 0.5
# More than the sockets' buffers hold, far less than what is offered.
BUFFERED = 20_000_000
# Only the status of a probe counts: these answer 200 and then misbehave.
ANSWER_THE_PROBE = {
    Habit.DRIPS_BODY,
    Habit.NEVER_ENDS,
    Habit.HUGE,
    Habit.GZIP_BOMB,
    Habit.DEEP,
    Habit.LONG_NUMBER,
}
HOSTILE = [h for h in Habit if h is not Habit.HONEST]


@pytest.fixture
def api() -> HttpWorkerApi:
    return HttpWorkerApi(SystemClock())


@pytest.fixture(params=HOSTILE, ids=str)
def worker(request: pytest.FixtureRequest) -> Iterator[HostileWorker]:
    with hostile(request.param) as made:
        yield made


def test_probe_of_a_hostile_worker_is_bounded_in_time_and_bytes(
    api: HttpWorkerApi, worker: HostileWorker
) -> None:
    assert api.healthy(f"{worker.endpoint}/healthz", TIMEOUT_S) is (worker.habit in ANSWER_THE_PROBE)
    assert worker.asked == 1
    assert worker.sent < BUFFERED


def test_self_report_of_a_hostile_worker_is_silent(worker: HostileWorker) -> None:
    assert read_self_report(worker.endpoint, timeout_s=TIMEOUT_S, clock=SystemClock()) is Word.SILENT
    assert worker.sent < BUFFERED


def test_activation_of_a_hostile_worker_is_bounded_in_time_and_bytes(
    api: HttpWorkerApi, worker: HostileWorker
) -> None:
    try:
        api.activate(f"{worker.endpoint}/activate", {"org": "acme"}, {}, TIMEOUT_S)
    except (Refused, Transient):
        assert worker.habit not in {Habit.HUGE, Habit.NEVER_ENDS}
    assert worker.asked == 1
    assert worker.sent < BUFFERED


def test_answers_of_an_honest_worker_are_accepted(api: HttpWorkerApi) -> None:
    with hostile(Habit.HONEST) as worker:
        assert api.healthy(f"{worker.endpoint}/healthz", TIMEOUT_S)
        assert read_self_report(worker.endpoint, timeout_s=TIMEOUT_S, clock=SystemClock()) is Word.UNUSED
        api.activate(f"{worker.endpoint}/activate", {}, {}, TIMEOUT_S)


def test_redirect_is_never_followed(api: HttpWorkerApi) -> None:
    with (
        hostile(Habit.HONEST) as target,
        hostile(Habit.REDIRECTS, elsewhere=target.endpoint) as worker,
    ):
        assert not api.healthy(f"{worker.endpoint}/healthz", TIMEOUT_S)
        assert read_self_report(worker.endpoint, timeout_s=TIMEOUT_S, clock=SystemClock()) is Word.SILENT
        with pytest.raises(Refused, match="302"):
            api.activate(f"{worker.endpoint}/activate", {}, {}, TIMEOUT_S)
        assert target.asked == 0


def test_bytes_of_the_header_count_too(api: HttpWorkerApi) -> None:
    """Long before the timeout."""
    with hostile(Habit.ENDLESS_CONTINUE) as worker, pytest.raises(Transient, match=r"more than \d+ bytes"):
        api.activate(f"{worker.endpoint}/activate", {}, {}, 30.0)


@pytest.mark.parametrize("prefix", ["http://localhost", "https://127.0.0.1", "ftp://127.0.0.1"])
def test_requests_go_only_to_observed_addresses(prefix: str) -> None:
    """A host name could resolve to any address, and its lookup has no deadline."""
    with hostile(Habit.HONEST) as worker:
        url = worker.endpoint.replace("http://127.0.0.1", prefix)
        with pytest.raises(Transient, match="cannot be reached"):
            boundedhttp.status(
                boundedhttp.HttpCall(method="GET", url=url), timeout_s=TIMEOUT_S, clock=SystemClock()
            )
        assert worker.asked == 0


@pytest.mark.parametrize(
    "body", [b"[" * 40 + b"]" * 40, b'{"open":' + b"9" * 19 + b"}", b"NaN", b"\xff", b"", b'{"a":"']
)
def test_json_out_of_bounds_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        boundedhttp.parsed(body)


def test_json_within_bounds_is_parsed() -> None:
    body = b'{"open": 3, "why": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ \\" {{{"}'
    assert boundedhttp.parsed(body)["open"] == 3


def test_hostile_workers_cost_a_pass_their_own_items_only(world: World) -> None:
    """Probed together with honest ones, in the same runs."""
    world.profile(probe_path="/healthz")
    habits = [*HOSTILE, Habit.HONEST, Habit.HONEST, Habit.HONEST]
    with ExitStack() as stack:
        served = [stack.enter_context(hostile(habit)) for habit in habits]
        rows = dict(zip(world.warm(len(served)), served, strict=True))
        for worker_id, worker in rows.items():
            _serve_at(world, worker_id, worker.endpoint)
        for _ in range(3):
            assert world.run_pass("sweep_stuck")["outcome"] == "ok"
        for worker_id, worker in rows.items():
            healthy = worker.habit in ANSWER_THE_PROBE | {Habit.HONEST}
            assert world.state_of(worker_id) is (State.IDLE if healthy else State.DRAINING), worker.habit
            assert worker.asked == 3, worker.habit


def _serve_at(world: World, worker_id: str, endpoint: str) -> None:
    with world.store.write() as tx:
        tx.execute(update(schema.workers).where(schema.workers.c.id == worker_id).values(endpoint=endpoint))
