"""Redis: there, new enough, keeping what it is given, and emptied by its consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError, ResponseError

from pool.doctor.finding import Finding, Level, Patient, ok, unchecked
from pool.errors import PoolError, Transient

LEAST_VERSION = (6, 2)
QUEUES = ("acquire", "fleet", "bind", "passes")
LONG_QUEUE = 500


def reachable(patient: Patient) -> Iterator[Finding]:
    """Whether it answers."""
    try:
        patient.redis.ping()
    except (RedisError, PoolError) as exc:
        yield Finding(
            id="redis_reachable", level=Level.BAD, evidence=str(exc), fix="see that it runs and that broker_url names it"
        )  # fmt: skip
        return
    yield ok("redis_reachable", "it answers")


def version(patient: Patient) -> Iterator[Finding]:
    """Whether it is new enough."""
    said = str(_info(patient, "server").get("redis_version", "0"))
    if tuple(int(n) for n in said.split(".")[:2] if n.isdigit()) < LEAST_VERSION:
        yield Finding(
            id="redis_version", level=Level.BAD, evidence=f"version {said}", fix="6.2 is the least that is supported"
        )  # fmt: skip
    else:
        yield ok("redis_version", said)


def policy(patient: Patient) -> Iterator[Finding]:
    """A broker that evicts loses tasks."""
    yield from _setting(
        patient,
        "redis_policy",
        "maxmemory-policy",
        "noeviction",
        "it may evict queued tasks when its memory is full",
    )


def persistence(patient: Patient) -> Iterator[Finding]:
    """Without an append-only file a restart empties the queues. The table survives that, callers in flight do not."""
    yield from _setting(
        patient,
        "redis_persistence",
        "appendonly",
        "yes",
        "a restart loses what is queued; callers ask again, late",
    )


def queues(patient: Patient) -> Iterator[Finding]:
    """A long queue has no consumers, or too few."""
    lengths = {name: int(_asked(lambda name=name: patient.redis.llen(name))) for name in QUEUES}
    long = {name: n for name, n in lengths.items() if n > LONG_QUEUE}
    told = ", ".join(f"{name} {n}" for name, n in (long or lengths).items())
    if long:
        yield Finding(
            id="queues_drained", level=Level.BAD, evidence=f"waiting in queues: {told}",
            fix=f"see that workers run: warmpool worker {next(iter(long))}",
        )  # fmt: skip
    else:
        yield ok("queues_drained", told)


def _setting(patient: Patient, ident: str, key: str, wanted: str, consequence: str) -> Iterator[Finding]:
    try:
        found: Any = _asked(lambda: patient.redis.config_get(key))
    except _NotTold as exc:
        yield unchecked(ident, f"{key} can not be asked ({exc}); see that it is {wanted}")
        return

    def mend() -> str:
        _asked(lambda: patient.redis.config_set(key, wanted))
        return f"{key} is now {wanted}; write it into the server's configuration as well, or a restart forgets it"

    value = found.get(key)
    if value == wanted:
        yield ok(ident, f"{key} is {value}")
    else:
        yield Finding(
            id=ident, level=Level.WARN, evidence=f"{key} is {value}: {consequence}", fix=f"CONFIG SET {key} {wanted}",
            repair=mend,
        )  # fmt: skip


class _NotTold(Transient):
    """The server does not let us ask."""


def _info(patient: Patient, section: str) -> dict[str, Any]:
    found: dict[str, Any] = _asked(lambda: patient.redis.info(section))
    return found


def _asked(call: Any) -> Any:
    try:
        return call()
    except ResponseError as exc:
        raise _NotTold(str(exc)) from exc
    except RedisError as exc:
        raise Transient(f"redis: {exc}") from exc
