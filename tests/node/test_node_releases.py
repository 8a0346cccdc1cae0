"""Upgrades, rollbacks and a second installation on a real node."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.node.test_node_faults import held
from tests.support.node_release import ChartRelease
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("WARMPOOL_TEST_LONG"), reason="WARMPOOL_TEST_LONG=1 selects it"),
]


def test_claim_lives_through_an_upgrade_and_a_rollback(pool: ChartRelease) -> None:
    with held(pool):
        pool.upgrade("defaults.podLabels.version=second")
        assert {p["metadata"]["labels"].get("version") for p in pool.pods("passes")} == {"second"}
        pool.rollback()
        pool.wait_ready()
        assert {p["metadata"]["labels"].get("version") for p in pool.pods("passes")} == {None}


def test_upgrade_succeeds_after_a_failed_one(pool: ChartRelease) -> None:
    with held(pool):
        failed = pool.upgrade("migrate.extraEnv[0].name=WARMPOOL_DATABASE_URL",
                              "migrate.extraEnv[0].value=postgresql://nowhere.test/x", "migrate.tries=0",
                              "image.tag=none", check=False, timeout="30s")  # fmt: skip
        assert failed.returncode != 0
        pool.upgrade()
        pool.wait_ready()
    assert "Succeeded" in pool.test()


def test_second_installation_uses_the_volumes_of_the_first(pool: ChartRelease) -> None:
    orgs = pool.run("warmpool", "get", "orgs", "--json")
    workers = [p["metadata"]["name"] for p in pool.worker_pods()]
    pool.uninstall()
    eventually(partial(namespace_is_gone, pool), within_s=120, every_s=0.5)
    assert workers
    pool.install()
    pool.warm()
    assert "acme" in orgs
    assert "acme" in pool.run("warmpool", "get", "orgs", "--json")
    assert "Succeeded" in pool.test()


def namespace_is_gone(release: ChartRelease) -> bool:
    return release.node.api.find(f"/api/v1/namespaces/{release.workers_namespace}") is None
