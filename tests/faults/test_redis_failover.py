"""A failover of Redis is an outage: the sentinels name another primary, and everything goes on with it.

No process ends, every request gets its answer, no worker has two holders, and no live claim ends. The
time without service is printed beside the time that the sentinels themselves took.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from celery import Celery

from pool.client import Pool
from tests.support.callers import Callers
from tests.support.sentinels import MASTER, SentinelGroup
from tests.support.standing import Standing, passes_go_on
from tests.support.system import EVERYTHING, System

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
WARM = 8
# Far above what it takes on an idle machine: the clients and the lane try again every second.
LATE_S = 20.0
PASSWORD, OWN_PASSWORD = "of-the-servers", "of-the-sentinels"

pytestmark = pytest.mark.timeout(300)

WAYS: dict[str, Callable[[SentinelGroup], float]] = {
    "SENTINEL FAILOVER": SentinelGroup.failover,
    "kill -9": SentinelGroup.crash,
    "kill -9, replicas behind": SentinelGroup.crash_ahead,
    "SIGSTOP": SentinelGroup.freeze,
}


@pytest.fixture(scope="module")
def group() -> Iterator[SentinelGroup]:
    made = SentinelGroup(password=PASSWORD, own_password=OWN_PASSWORD)
    yield made
    made.close()


@pytest.fixture(scope="module")
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, group: SentinelGroup
) -> Iterator[System]:
    url = request.getfixturevalue("postgres").create_database("failover")
    settings = {
        "pool": {"max_workers": 40, "hot_idle_ttl_s": 900},
        "profiles": {
            "default": {"warm_target": WARM},
            "bound": {
                "warm_target": 2,
                "activation_path": "/activate",
                "activation_payload": {"org": "{org}"},
            },
        },
    }
    folder = tmp_path_factory.mktemp("failover")
    with System(
        folder, url, settings=settings, redis=group.servers[0], broker_url=group.url, measured=True
    ) as made:
        group.start()
        made.run(*EVERYTHING, "acquire-2", "passes-2").wait_idle(WARM)
        yield made
        assert made.wrongs() == []


@pytest.mark.parametrize("way", WAYS if LONG else list(WAYS)[:2])
def test_failover_of_redis_loses_no_request_and_ends_no_process(
    system: System, group: SentinelGroup, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    group.mend()
    standing = Standing(system)
    with (
        Pool(group.url, name="holder") as holder,
        Callers(group.url, org="acme", profiles=("default", "default", "bound")) as callers,
        holder.acquire("held", wait_s=30, lease_s=10) as held,
    ):
        callers.goes_on()
        began = time.monotonic()
        sentinels_s = WAYS[way](group)
        callers.goes_on()
        gaps = callers.longest_gap_s(began)
        with capsys.disabled():
            print(
                f"\n{way}: sentinels {sentinels_s:.1f} s; without a grant: "
                + ", ".join(f"{kind} {gap:.1f} s" for kind, gap in gaps.items())
                + f"; {callers.asked} requests, {callers.repeated} repeated"
            )
        passes_go_on(system, within_s=60)
        group.mend()
        callers.goes_on()
        assert not held.lost
        assert max(gaps.values()) < sentinels_s + LATE_S
    assert callers.complaints == []
    standing.assert_stands()


def test_commands_reach_the_primary_that_the_sentinels_name(system: System, group: SentinelGroup) -> None:
    group.mend()
    assert '"redis_reachable"' in system.command("doctor", "--json", ok=(0, 1))
    assert "granted" in system.command("acquire", "--org", "acme", "--wait", "30", "--json")


def test_celery_app_of_a_service_uses_the_sentinels_with_its_own_settings(
    system: System, group: SentinelGroup
) -> None:
    group.mend()
    url = ";".join(f"sentinel://:{PASSWORD}@127.0.0.1:{each.port}/0" for each in group.sentinels)
    app = Celery("service", broker=url, backend=url, set_as_current=False)
    options = {"master_name": MASTER, "sentinel_kwargs": {"password": OWN_PASSWORD}}
    app.conf.update(broker_transport_options=options, result_backend_transport_options=options)
    try:
        sent = app.send_task("pool.acquire", kwargs={"org": "acme", "wait_s": 30}, queue="acquire")
        answer = sent.get(timeout=60)
        assert answer["outcome"] == "granted", answer
        app.send_task("pool.release", kwargs={"claim_id": answer["claim_id"]}, queue="acquire").get(
            timeout=60
        )
    finally:
        app.close()
