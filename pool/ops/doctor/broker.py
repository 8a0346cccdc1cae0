"""Checks of Redis: reachable, new enough, no eviction, persistent, and queues consumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError, ResponseError

from pool.core.errors import PoolError, Transient
from pool.core.names import QUEUES
from pool.ops.doctor.finding import Finding, Installation, Level, ok, unchecked

LEAST_VERSION = (6, 2)
LONG_QUEUE = 500


def reachable(installation: Installation) -> Iterator[Finding]:
    """Check that Redis answers."""
    try:
        installation.redis.ping()
    except (RedisError, PoolError) as exc:
        yield Finding(
            id="redis_reachable", level=Level.BAD, evidence=str(exc), fix="check that Redis runs "
                                                                          "and that broker_url is right"
        )  # fmt: skip
        return
    yield ok("redis_reachable", "Redis answers")


def mode(installation: Installation) -> Iterator[Finding]:
    """Check that Redis is not a cluster: one command of the pool uses keys of several slots."""
    if _info(installation, "cluster").get("cluster_enabled"):
        yield Finding(
            id="redis_mode", level=Level.BAD, evidence="Redis runs in cluster mode, which is not supported, "
                                                       "also not with one shard",
            fix="use one primary with replicas: turn cluster mode off, and name the primary or its sentinels "
                "in broker_url",
        )  # fmt: skip
    else:
        yield ok("redis_mode", "Redis is not a cluster")


def version(installation: Installation) -> Iterator[Finding]:
    """Check that the Redis version is supported."""
    found = str(_info(installation, "server").get("redis_version", "0"))
    if tuple(int(n) for n in found.split(".")[:2] if n.isdigit()) < LEAST_VERSION:
        yield Finding(
            id="redis_version", level=Level.BAD, evidence=f"Redis has version {found}; the minimum "
                                                          "is 6.2", fix="upgrade Redis"
        )  # fmt: skip
    else:
        yield ok("redis_version", found)


def policy(installation: Installation) -> Iterator[Finding]:
    """Check that Redis evicts nothing: a broker that evicts keys loses tasks."""
    yield from _setting(
        installation,
        "redis_policy",
        "maxmemory-policy",
        "noeviction",
        "Redis may evict queued tasks when its memory is full",
    )


def persistence(installation: Installation) -> Iterator[Finding]:
    """Check for the append-only file: without it a restart of Redis empties the queues."""
    yield from _setting(
        installation,
        "redis_persistence",
        "appendonly",
        "yes",
        "a restart of Redis loses queued tasks; callers retry, and are served late",
    )


def queues(installation: Installation) -> Iterator[Finding]:
    """Check that no queue is long: a long queue has no consumers, or too few."""
    lengths = {name: int(_call(lambda name=name: installation.redis.llen(name))) for name in QUEUES}
    long = {name: n for name, n in lengths.items() if n > LONG_QUEUE}
    shown = ", ".join(f"{name} {n}" for name, n in (long or lengths).items())
    if long:
        yield Finding(
            id="queues_drained", level=Level.BAD,
            evidence=f"queues are longer than {LONG_QUEUE} messages: {shown}",
            fix=f"check that enough Celery workers run: warmpool worker {next(iter(long))}",
        )  # fmt: skip
    else:
        yield ok("queues_drained", shown)


def _setting(
    installation: Installation, ident: str, key: str, wanted: str, consequence: str
) -> Iterator[Finding]:
    try:
        found: Any = _call(lambda: installation.redis.config_get(key))
    except _NotReadable as exc:
        yield unchecked(ident, f"Redis does not let us read {key} ({exc}); check that it is {wanted}")
        return

    def repair() -> str:
        _call(lambda: installation.redis.config_set(key, wanted))
        return (
            f"{key} is now {wanted}; also set it in the configuration file of Redis, or it is "
            "lost with a restart"
        )

    value = found.get(key)
    if value == wanted:
        yield ok(ident, f"{key} is {value}")
    else:
        yield Finding(
            id=ident, level=Level.WARN, evidence=f"{key} is {value}: {consequence}",
            fix=f"run in redis-cli: CONFIG SET {key} {wanted}", repair=repair,
        )  # fmt: skip


class _NotReadable(Transient):
    """The server does not allow the command."""


def _info(installation: Installation, section: str) -> dict[str, Any]:
    found: dict[str, Any] = _call(lambda: installation.redis.info(section))
    return found


def _call(call: Any) -> Any:
    try:
        return call()
    except ResponseError as exc:
        raise _NotReadable(str(exc)) from exc
    except RedisError as exc:
        raise Transient(f"redis: {exc}") from exc
