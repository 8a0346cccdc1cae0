"""Real processes are killed, frozen or stopped, and servers go down under load: nothing is lost, no
worker has two holders, and calls that cannot be answered now are answered later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.result import AsyncResult
from sqlalchemy import func, select, text

from pool.client import AnswerOverdue, BrokerDown, Pool
from pool.core.errors import PoolError
from pool.core.names import TAKEN_KEY, TAKEN_SINCE_KEY
from pool.core.states import LIVE
from pool.store import schema
from tasks.lane.mailbox import BLOCK_S
from tasks.options import LANE
from tests.support.postgres_server import PostgresServer
from tests.support.system import EVERYTHING, ROOT, Insider, Load, Service, System
from tests.support.waiting import eventually

SETTINGS = {"pool": {"max_workers": 12, "hot_idle_ttl_s": 3}, "profiles": {"default": {"warm_target": 5}}}
SOON_S = 40
# Longer than every lease and every gap that the lane allows.
LONG_S = 120.0

HOLDER = """
import sys, threading
from pool.client import Pool
worker = Pool(sys.argv[1]).acquire(sys.argv[2], wait_s=30, lease_s=5)
print(worker.claim_id, flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresServer]:
    """A database for this file only, because its tests kill it."""
    server = PostgresServer().start()
    yield server
    server.destroy()


@pytest.fixture(scope="module")
def deployment(database: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = database.create_database("faults")
    with System(tmp_path_factory.mktemp("system"), url, settings=SETTINGS) as made:
        yield made.run(*EVERYTHING)


@pytest.fixture
def system(deployment: System, database: PostgresServer) -> Iterator[System]:
    if not database.running:
        database.start()
    deployment.mend().wait_idle(2)
    yield deployment
    assert not deployment.wrongs()


@pytest.fixture
def service(system: System) -> Iterator[Service]:
    made = Service(system.redis.url)
    yield made
    made.close()


@pytest.fixture
def broker(system: System) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(system.redis.url, decode_responses=True) as client:
        yield client


def claims_of(system: System, org: str) -> int:
    with system.store.read() as tx:
        found = select(func.count()).select_from(schema.claims).where(schema.claims.c.org == org)
        return int(tx.execute(found).scalar_one())


def a_pass_succeeds(system: System) -> None:
    """Wait for a successful reap that began after this call. It is requested, not waited for."""
    began, P, insider = system.store.now(), schema.passes, Insider(system)

    def done() -> bool:
        insider.order("pool.reap")
        with system.store.read() as tx:
            reap = tx.execute(select(P).where(P.c.name == "reap")).one()
        return bool(began < reap.last_attempt_at <= reap.last_success_at)

    eventually(done, within_s=SOON_S, every_s=0.3)
    insider.close()


def redeliver(broker: redis.Redis) -> None:
    """Let the visibility timeout of taken messages pass."""
    taken: Any = broker.zrange(TAKEN_SINCE_KEY, 0, -1, withscores=True)
    for tag, at in taken:
        broker.zadd(TAKEN_SINCE_KEY, {tag: float(at) - 1000}, xx=True)


def test_every_call_is_answered_once_although_the_acquire_worker_is_killed(
    system: System, service: Service, broker: redis.Redis
) -> None:
    with Pool(system.redis.url) as pool, ThreadPoolExecutor(50) as threads:

        def one(number: int) -> str:
            with pool.acquire("killed", wait_s=60, request_id=f"k-{number}") as worker:
                return worker.claim_id

        calls = [threads.submit(one, n) for n in range(50)]
        plain = [service.send("acquire", org="killed", wait_s=60, lease_s=60) for _ in range(6)]
        eventually(lambda: sum(call.done() for call in calls) >= 3, within_s=SOON_S, every_s=0.001)
        system["acquire"].kill()
        unanswered = sum(not call.done() for call in calls)
        system.mend()
        redeliver(broker)
        claim_ids = [call.result(timeout=90) for call in calls]
        for result in plain:
            eventually(result.ready, within_s=90, every_s=0.1)
        answers: list[Any] = [result.result for result in plain]
    assert unanswered > 0
    assert {answer["outcome"] for answer in answers} == {"granted"}
    claim_ids += [answer["claim_id"] for answer in answers]
    assert len(set(claim_ids)) == len(claim_ids) == claims_of(system, "killed") == 56
    for answer in answers:
        assert service.call("release", claim_id=answer["claim_id"]) == {"outcome": "released"}
    assert system.live_claims() == []


def test_a_claim_whose_reply_was_lost_with_its_process_is_still_answered(
    system: System, service: Service, broker: redis.Redis
) -> None:
    with system.store.write() as tx:
        tx.execute(text("LOCK TABLE claims IN SHARE MODE"))
        sent = service.send("acquire", org="mute", request_id="r", lease_s=60)
        eventually(lambda: somebody_waits_for_claims(system), within_s=SOON_S)
        # The claim is committed, but its answer does not leave the process.
        broker.execute_command("CLIENT PAUSE 60000 WRITE")
    eventually(lambda: system.live_claims(org="mute"), within_s=SOON_S)
    system["acquire"].kill()
    broker.execute_command("CLIENT UNPAUSE")
    answer = sent.get(timeout=SOON_S)
    assert not system["acquire"].alive()
    assert answer["outcome"] == "granted"
    assert system.live_claims(org="mute") == [answer["claim_id"]]
    system.mend()
    redeliver(broker)
    eventually(lambda: not broker.hlen(TAKEN_KEY), within_s=SOON_S)
    assert claims_of(system, "mute") == 1
    assert service.call("release", claim_id=answer["claim_id"]) == {"outcome": "released"}


def somebody_waits_for_claims(system: System) -> bool:
    asked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'claims'::regclass"
    with system.store.read() as tx:
        return bool(tx.execute(text(asked)).scalar_one())


def test_sigterm_finishes_or_returns_every_message(
    system: System, service: Service, broker: redis.Redis
) -> None:
    sent = [service.send("acquire", org="handed-back", lease_s=60, ttl_s=0) for _ in range(60)]
    assert system["acquire"].terminate() == 0
    assert "signal=SIGTERM" in system["acquire"].log()
    assert broker.hlen(TAKEN_KEY) == 0
    system.mend()
    answers = [result.get(timeout=SOON_S) for result in sent]
    assert {answer["outcome"] for answer in answers} <= {"granted", "refused"}
    granted = [answer["claim_id"] for answer in answers if answer["outcome"] == "granted"]
    assert len(set(granted)) == len(granted) == claims_of(system, "handed-back")
    assert granted
    for claim_id in granted:
        service.call("release", claim_id=claim_id)


def test_a_stopping_worker_takes_no_new_message_while_it_finishes(
    system: System, service: Service, broker: redis.Redis
) -> None:
    with system.store.write() as tx:
        tx.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        tx.execute(text("LOCK TABLE claims IN SHARE MODE"))
        # With an expiry Celery's own consumer has it, and the process cannot end before it is done.
        task = service.app.signature(
            "pool.acquire", kwargs={"org": "in-hand", "lease_s": 60}, queue="acquire"
        )
        in_hand = task.apply_async(expires=600)
        eventually(lambda: somebody_waits_for_claims(system), within_s=SOON_S)
        before = len(system["acquire"].log())
        system["acquire"].send(signal.SIGTERM)
        eventually(lambda: "worker_stopping" in system["acquire"].log()[before:], within_s=SOON_S)
        time.sleep(2 * BLOCK_S)  # a consumer that was waiting when the signal came has stopped
        late = service.send("acquire", org="late", lease_s=60)
        time.sleep(2 * BLOCK_S)
        assert _lies_there(broker, late)
    assert system["acquire"].ends() == 0
    assert _lies_there(broker, late)
    system.mend()
    answers = [result.get(timeout=SOON_S) for result in (in_hand, late)]
    assert [answer["outcome"] for answer in answers] == ["granted", "granted"]
    for answer in answers:
        service.call("release", claim_id=answer["claim_id"])


def _lies_there(broker: redis.Redis, sent: AsyncResult[Any]) -> bool:
    return any(sent.id in message for message in broker.lrange(LANE, 0, -1))


def test_a_broker_that_crashes_under_load_is_reconnected(system: System, service: Service) -> None:
    pids = {name: part.pid for name, part in system.parts.items()}
    with Pool(system.redis.url) as pool, Load(system.redis.url, orgs=("redis",)) as load:
        held = pool.acquire("redis-held", wait_s=30, lease_s=5)
        load.goes_on()
        system.redis.kill()
        # A new call fails at once; a call that was sent may wait for its answer until the broker is
        # back.
        with pytest.raises(BrokerDown):
            pool.cancel("redis-held", "none")
        system.redis.start()
        load.goes_on()
        a_pass_succeeds(system)
        assert not held.lost
        assert held.release() == "released"
    assert {name: part.pid for name, part in system.parts.items() if part.alive()} == pids


def test_a_database_that_crashes_under_load_is_reconnected_and_ends_no_claim(
    system: System, service: Service, database: PostgresServer
) -> None:
    pids = {name: part.pid for name, part in system.parts.items()}
    with Pool(system.redis.url) as pool, Load(system.redis.url, orgs=("postgres",)) as load:
        held = pool.acquire("postgres-held", wait_s=30, lease_s=5)
        load.goes_on()
        database.kill()
        # Nothing is decided without the database: a call fails when its timeout is over.
        with pytest.raises(AnswerOverdue):
            pool.cancel("postgres-held", "none")
        database.start()
        # It was down for longer than any lease.
        eventually(lambda: clock_moved_on(system), within_s=SOON_S)
        load.goes_on()
        a_pass_succeeds(system)
        assert system.live_claims(org="postgres-held") == [held.claim_id]
        assert not held.lost
        assert held.release() == "released"
    assert {name: part.pid for name, part in system.parts.items() if part.alive()} == pids


def clock_moved_on(system: System) -> bool:
    try:
        system.shift_clock(LONG_S)
    except PoolError:
        return False
    return True


def test_no_lease_ends_while_renewals_are_impossible(system: System, service: Service) -> None:
    with Pool(system.redis.url) as pool:
        held = pool.acquire("patient", wait_s=30, lease_s=5)
        with system["acquire"].frozen():
            system.shift_clock(LONG_S)
            a_pass_succeeds(system)
            assert system.live_claims(org="patient") == [held.claim_id]
        a_pass_succeeds(system)
        assert system.live_claims(org="patient") == [held.claim_id]
        assert held.release() == "released"


def test_claims_of_a_dead_holder_and_of_an_unread_reply_end_at_their_lease(
    system: System, service: Service
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, system.redis.url, "dying"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    died = holder.stdout.readline().strip()
    with Pool(system.redis.url) as pool:
        alive = pool.acquire("living", wait_s=30, lease_s=5)
        holder.kill()
        holder.communicate()
        service.send("acquire", org="unread", lease_s=5, wait_s=30)
        eventually(lambda: system.live_claims(org="unread"), within_s=SOON_S)
        [unread] = system.live_claims(org="unread")
        for claim_id in (died, unread):
            eventually(partial(has_ended, system, claim_id), within_s=SOON_S, every_s=0.1)
            ended = system.claim(claim_id)
            assert ended.ended_why == "expired"
            # Its holder might still use it: it is granted to no other caller.
            eventually(partial(is_retired, system, ended.worker_id), within_s=SOON_S)
        assert not alive.lost
        assert alive.release() == "released"


def has_ended(system: System, claim_id: str) -> bool:
    return system.claim(claim_id).ended_at is not None


def is_retired(system: System, worker_id: str) -> bool:
    return state_of(system, worker_id) == "retired"


def state_of(system: System, worker_id: str) -> str:
    W = schema.workers
    with system.store.read() as tx:
        return str(tx.execute(select(W.c.state).where(W.c.id == worker_id)).scalar_one())


@pytest.mark.parametrize("role", ["acquire", "passes"])
def test_an_invalid_configuration_is_reported_in_one_line_and_ends_the_process(
    tmp_path: Path, role: str
) -> None:
    config = tmp_path / "warmpool.toml"
    config.write_text('[pool]\nmax_workers = "many"\n')
    code, said = started(role, {"WARMPOOL_CONFIG": str(config), "WARMPOOL_DATA_DIR": str(tmp_path)})
    assert code == 2
    assert "max_workers" in said
    assert len(said.splitlines()) == 1


def test_a_missing_schema_is_reported_in_one_line_and_ends_the_process(
    system: System, database: PostgresServer, tmp_path: Path
) -> None:
    url = database.create_database("without_schema")
    code, said = started(
        "acquire", {**system.env, "WARMPOOL_DATABASE_URL": url, "WARMPOOL_DATA_DIR": str(tmp_path)}
    )
    assert code not in (0, None)
    [line] = [line for line in said.splitlines() if "migrate" in line]
    assert "Traceback" not in said
    assert "schema" in line


def started(role: str, env: dict[str, str]) -> tuple[int, str]:
    """Start a worker that must not start; return its exit code and its output."""
    done = subprocess.run(
        [sys.executable, "-m", "pool.ops.cli", "worker", role],
        cwd=ROOT, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).strip()


def test_sigterm_ends_every_process_cleanly_and_touches_no_pod(system: System, service: Service) -> None:
    held = service.granted("stays", lease_s=60)
    # Workers that are being created would change by themselves.
    eventually(lambda: "spawning" not in live_workers(system).values(), within_s=SOON_S)
    before = live_workers(system)
    for part in system.parts.values():
        part.send(signal.SIGTERM)
    assert {name: part.ends() for name, part in system.parts.items()} == dict.fromkeys(EVERYTHING, 0)
    for name in EVERYTHING:
        assert "signal=SIGTERM" in system[name].log()
    assert live_workers(system) == before
    assert system.live_claims(org="stays") == [held["claim_id"]]


def live_workers(system: System) -> dict[str, str]:
    W = schema.workers
    with system.store.read() as tx:
        found = select(W.c.id, W.c.state).where(W.c.state.in_(sorted(LIVE)), W.c.state != "draining")
        return {row.id: row.state for row in tx.execute(found)}
