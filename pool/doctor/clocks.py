"""Clocks. The database's decides and no two are ever compared, but for one thing: a tick expires by the clock of whoever sent it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redis.exceptions import RedisError

from pool.clock import wall_s
from pool.doctor.finding import Finding, Level, Patient, ok
from pool.periods import tick_expires_s
from pool.store import true_now


def differences(patient: Patient) -> Iterator[Finding]:
    """How far this host and Redis's are from the database."""
    tolerated = tick_expires_s("guard_disruption") / 2
    theirs = true_now(patient.store).timestamp()
    found = {"this host": wall_s() + 0.5 - theirs}
    try:
        told: Any = patient.redis.time()
        found["redis"] = told[0] + told[1] / 1e6 - theirs
    except RedisError:
        pass  # told by another check
    for where, by in found.items():
        if abs(by) > tolerated:
            yield Finding(
                id=f"clock_{where.replace(' ', '_')}",
                level=Level.WARN,
                evidence=f"{where} is {by:+.0f} s from the database; beyond {tolerated:.0f} s ticks of a beat there may expire before they are run",
                fix="let it be set by NTP",
            )  # fmt: skip
    if all(abs(by) <= tolerated for by in found.values()):
        told = ", ".join(f"{where} {by:+.1f} s" for where, by in found.items())
        yield ok("clocks", f"from the database: {told}")
