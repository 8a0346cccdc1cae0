"""The doctor reports problems with evidence and a fix, repairs what it can, and no check stops
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pool.core.errors import PoolError
from pool.core.settings import PoolSettings, Settings
from pool.ops import doctor
from pool.ops.doctor import Finding, Installation, Level
from pool.store import connect, migrations, passes, rules
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.world import World


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def patient(world: World, redis: RedisServer, **pool: Any) -> Installation:
    settings = replace(
        world.deps.settings,
        pool=replace(world.deps.settings.pool, broker_url=redis.url, data_dir="/nowhere", **pool),
    )
    made = Installation(settings)
    made.__dict__["store"] = world.store
    return made


def examined(found: Installation) -> dict[str, Finding]:
    return {f.id: f for f in doctor.examine(found)}


def test_each_finding_has_an_id_evidence_and_a_fix_that_works(world: World, redis: RedisServer) -> None:
    world.pass_time(60)
    sick = patient(world, redis, spawn_budget_s=10)
    found = examined(sick)
    assert found["time_budgets"].level is Level.BAD
    assert "spawn_budget_s must be at least pod_ready_limit_s" in found["time_budgets"].evidence
    assert found["database_reachable"].evidence.startswith("Postgres")
    assert found["schema_current"].level is Level.OK
    assert found["clocks"].level is Level.OK
    assert found["beat_dark"].level is Level.BAD
    assert "warmpool beat" in found["beat_dark"].fix
    assert found["counters"].level is Level.OK
    persistence = found["redis_persistence"]
    assert persistence.level is Level.WARN
    assert persistence.repair is not None
    assert "appendonly is now yes" in persistence.repair()
    assert examined(sick)["redis_persistence"].level is Level.OK
    sick.redis.config_set("appendonly", "no")
    sick.redis.close()


def test_an_evicting_policy_a_long_queue_and_an_unknown_profile_are_found(
    world: World, redis: RedisServer
) -> None:
    sick = patient(world, redis)
    sick.redis.config_set("maxmemory-policy", "allkeys-lru")
    sick.redis.rpush("fleet", *("x" for _ in range(501)))
    world.profile("old", warm_target=1)
    world.warm(1, "old")
    found = examined(sick)
    assert "allkeys-lru" in found["redis_policy"].evidence
    assert "fleet 501" in found["queues_drained"].evidence
    assert "1 live workers (0 in use) have profile old" in found["unknown_profile:old"].evidence
    assert "after a minute" in found["unknown_profile:old"].fix
    sick.redis.delete("fleet")
    sick.redis.config_set("maxmemory-policy", "noeviction")
    sick.redis.close()


def test_an_unreachable_redis_or_database_stops_no_other_check(tmp_path: Path) -> None:
    settings = Settings(
        pool=PoolSettings(broker_url="redis://127.0.0.1:1/0", data_dir=str(tmp_path / "none"))
    )
    sick = Installation(settings)
    sick.__dict__["store"] = connect("postgresql://127.0.0.1:1/none", call_timeout_s=2)
    found = examined(sick)
    assert found["redis_reachable"].level is Level.BAD
    assert found["database_reachable"].level is Level.BAD
    assert found["time_budgets"].level is Level.OK
    sick.close()


def test_an_old_schema_is_migrated(tmp_path: Path, redis: RedisServer, postgres: PostgresServer) -> None:
    url = postgres.create_database("old_schema")
    sick = Installation(
        Settings(pool=PoolSettings(broker_url=redis.url, database_url=url, data_dir=str(tmp_path)))
    )
    tmp_path.chmod(0o755)
    found = examined(sick)
    assert found["schema_current"].fix == "run: warmpool migrate"
    assert found["data_dir_private"].level is Level.BAD
    for ident in ("schema_current", "data_dir_private"):
        repair = found[ident].repair
        assert repair is not None
        repair()
    found = examined(sick)
    assert found["schema_current"].level is found["data_dir_private"].level is Level.OK
    sick.close()


def test_missing_rules_are_reported_and_installed(
    world: World, redis: RedisServer, postgres: PostgresServer, postgres_template: str
) -> None:
    own = connect(postgres.create_database("without_rules", template=postgres_template))
    with own.write() as tx:
        tx.exec_driver_sql(f"DROP SCHEMA {rules.schema()} CASCADE")
    with pytest.raises(PoolError, match=r"does not exist.*: run `warmpool migrate`"):
        rules.call(own, "end_claim", {})
    sick = patient(world, redis)
    sick.__dict__["store"] = own
    found = examined(sick)["schema_current"]
    assert "does not have the rules of this code" in found.evidence
    assert found.repair is not None
    found.repair()
    assert examined(sick)["schema_current"].level is Level.OK
    sick.redis.close()
    own.close()


def test_a_database_user_without_rights_is_reported(world: World, redis: RedisServer) -> None:
    with world.store.write() as tx:
        tx.exec_driver_sql("CREATE ROLE weak LOGIN")
    url = world.store.engine.url.set(username="weak").render_as_string().replace("+psycopg", "")
    sick = Installation(
        Settings(pool=PoolSettings(broker_url=redis.url, database_url=url, data_dir="/nowhere"))
    )
    try:
        assert any("permission denied" in found.evidence for found in examined(sick).values())
        with pytest.raises(PoolError, match=r"permission denied for .*must own"):
            migrations.upgrade(sick.store)
    finally:
        sick.close()
        with world.store.write() as tx:
            tx.exec_driver_sql("DROP ROLE weak")


def test_a_wrong_clock_is_reported(world: World, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    sick = patient(world, redis)
    monkeypatch.setattr("pool.ops.doctor.clocks.wall_s", lambda: 0)
    assert "log times do not match" in examined(sick)["clock_this_host"].evidence
    sick.redis.close()


def test_a_failing_pass_is_reported_with_its_cause(world: World, redis: RedisServer) -> None:
    with world.store.write() as tx:
        for name in ("reap", "reconcile_warm"):
            passes.attempt(tx, name, "p", not_within_s=0)
        for _ in range(3):
            passes.failed(tx, "reap", outcome="failed", detail="pods is forbidden")
    sick = patient(world, redis)
    found = examined(sick)
    assert any("pods is forbidden" in f.evidence for f in found.values())
    sick.redis.close()


def test_redis_in_cluster_mode_is_reported(world: World) -> None:
    with RedisServer(more={"cluster-enabled": "yes"}) as server:
        found = examined(patient(world, server))["redis_mode"]
    assert found.level is Level.BAD
    assert "cluster mode" in found.evidence
