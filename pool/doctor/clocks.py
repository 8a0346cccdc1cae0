"""Clocks. The database's decides and no two are ever compared to decide anything; that they differ is told, since logs, certificates and tokens go by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from pool.clock import wall_s
from pool.doctor.finding import Finding, Level, Patient, ok
from pool.errors import PoolError
from pool.store import true_now

# Half of what credentials of a cluster are usually given for being early or late.
TOLERATED_S = 5.0


def differences(patient: Patient) -> Iterator[Finding]:
    """How far this host, Redis and the API server are from the database."""
    found = _clocks(patient)
    for where, by in found.items():
        if abs(by) > TOLERATED_S:
            yield Finding(
                id=f"clock_{where.replace(' ', '_')}",
                level=Level.WARN,
                evidence=f"{where} is {by:+.0f} s from the database; nothing of the pool goes by it, but logs do not line up, and certificates and tokens may seem early or late",
                fix="let it be set by NTP",
            )  # fmt: skip
    if all(abs(by) <= TOLERATED_S for by in found.values()):
        told = ", ".join(f"{where} {by:+.1f} s" for where, by in found.items())
        yield ok("clocks", f"from the database: {told}")


def _clocks(patient: Patient) -> dict[str, float]:
    """Seconds ahead of the database. Whoever does not answer is told by another check."""
    found = {"this host": wall_s() + 0.5 - true_now(patient.store).timestamp()}
    with suppress(RedisError, PoolError):
        told: Any = patient.redis.time()
        found["redis"] = told[0] + told[1] / 1e6 - true_now(patient.store).timestamp()
    if patient.cluster_answers:
        with suppress(PoolError):
            found["API server"] = patient.cluster.now_s() + 0.5 - true_now(patient.store).timestamp()
    return found
