"""Every long-lived thread of a running pool is killed in turn: it is restarted, counted, and its
work continues in the same process. Rows of an older version end none of them.
"""

from __future__ import annotations

import contextlib
import re
import urllib.request
from collections.abc import Iterator

import pytest
from sqlalchemy import insert, select

from pool.store import now, passes, schema
from pool.store.sql import plus
from tests.support.postgres_server import PostgresServer
from tests.support.system import Service, System, SystemPart
from tests.support.thread_kill import kill_thread, killable
from tests.support.waiting import eventually

WARM = 2
# Every thread of each process; `bind` has only these.
THREADS = [
    *(("acquire", name) for name in ("lane", "timers", "outbox", "liveness", "metrics")),
    *(("fleet", name) for name in ("observer", "fallback", "outbox", "liveness", "metrics")),
    *(("passes", name) for name in ("pod cache", "preflight", "outbox", "liveness", "metrics")),
    ("beat", "metrics"),
]


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, postgres_template: str
) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("pool")
    url = postgres.create_database("threads", template=postgres_template)
    settings = {"profiles": {"default": {"warm_target": WARM, "grace_s": 1}}}
    with System(folder, url, settings=settings, measured=True) as made:
        made.env = killable(made.env, folder / "kill")
        made.run("acquire", "fleet", "bind", "passes", "beat").wait_idle(WARM)
        yield made


@pytest.fixture(scope="module")
def service(system: System) -> Iterator[Service]:
    made = Service(system.redis.url)
    yield made
    made.close()


def restarts(part: SystemPart, thread: str) -> float:
    """Return the process's own counter; -1 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{part.metrics_port}/metrics", timeout=5) as page:
            text = page.read().decode()
    except OSError:
        return -1.0
    found = re.search(rf'^warmpool_thread_restarts_total{{thread="{thread}"}} (\S+)$', text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def live(system: System, service: Service) -> None:
    """A complete claim, including the refill: every thread takes part in it."""
    claim = service.granted("acme")
    assert service.call("release", claim_id=claim["claim_id"], condition="tainted")["outcome"] == "released"
    system.wait_idle(WARM)


def kill(part: SystemPart, thread: str, before: float) -> None:
    """Kill the thread until the process counts a restart. Python drops an exception that is raised
    into a thread while it runs a destructor or the callback of a weak reference.
    """
    for _ in range(5):
        kill_thread(part.pid, part.env, thread)
        with contextlib.suppress(AssertionError):
            eventually(lambda: restarts(part, thread) > before, within_s=15, every_s=0.1)
            return
    raise AssertionError(f"{thread} was killed five times, and no restart was counted")


@pytest.mark.parametrize(("role", "thread"), THREADS)
def test_killed_thread_is_restarted_counted_and_works_again(
    system: System, service: Service, role: str, thread: str
) -> None:
    part = system[role]
    live(system, service)
    pid, before = part.pid, restarts(part, thread)
    kill(part, thread, before)
    live(system, service)
    assert part.alive()
    assert part.pid == pid


def test_request_of_an_older_version_with_an_empty_task_id_wedges_nothing(
    system: System, service: Service
) -> None:
    R, D = schema.requests, schema.deeds
    pids = {name: part.pid for name, part in system.parts.items()}
    with system.store.write() as tx:
        tx.execute(
            insert(R).values(
                pk="r-poison", org="mallory", request_id="poison", profile="default", lease_s=30, wait_s=1,
                state="waiting",
                created_at=now(tx), deadline_at=plus(now(tx), -1.0), replies=[["", ""]],
            )
        )  # fmt: skip

    def entry() -> str | None:
        with system.store.read() as tx:
            return tx.execute(select(D.c.why).where(D.c.what == "answer_undeliverable")).scalar_one_or_none()

    eventually(entry, within_s=60, every_s=0.1)
    with system.store.read() as tx:
        succeeded = passes.get(tx, "reap").last_success_at

    def reaped_again() -> bool:
        with system.store.read() as tx:
            return passes.get(tx, "reap").last_success_at != succeeded

    eventually(reaped_again, within_s=60, every_s=0.1)
    live(system, service)
    assert {name: part.pid for name, part in system.parts.items()} == pids
    assert all(part.alive() for part in system.parts.values())
