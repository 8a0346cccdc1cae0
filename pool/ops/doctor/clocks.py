"""Clocks. The pool decides by the database clock only. Differences are reported because logs,
certificates and tokens use the other clocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from pool.core.clock import wall_s
from pool.core.errors import PoolError
from pool.ops.doctor.finding import Finding, Installation, Level, ok
from pool.store import true_now

# Half of the usual tolerance for cluster credentials.
TOLERATED_S = 5.0


def differences(installation: Installation) -> Iterator[Finding]:
    """Check how far the clocks of this host, Redis and the API server are from the database clock."""
    found = _clocks(installation)
    for where, by in found.items():
        if abs(by) > TOLERATED_S:
            yield Finding(
                id=f"clock_{where.replace(' ', '_')}",
                level=Level.WARN,
                evidence=f"the clock of {where} differs from the database clock by {by:+.0f} s; "
                "the pool does not depend "
                "on it, but log times do not match, and certificates and tokens may be rejected",
                fix="synchronize the clock with NTP",
            )
    if all(abs(by) <= TOLERATED_S for by in found.values()):
        shown = ", ".join(f"{where} {by:+.1f} s" for where, by in found.items())
        yield ok("clocks", f"difference from the database clock: {shown}")


def _clocks(installation: Installation) -> dict[str, float]:
    """Return the seconds that each clock is ahead of the database. Servers that do not answer are
    left out; other checks report them."""
    found = {"this host": wall_s() + 0.5 - true_now(installation.store).timestamp()}
    with suppress(RedisError, PoolError):
        time: Any = installation.redis.time()
        found["redis"] = time[0] + time[1] / 1e6 - true_now(installation.store).timestamp()
    if installation.cluster_answers:
        with suppress(PoolError):
            found["API server"] = (
                installation.cluster.now_s() + 0.5 - true_now(installation.store).timestamp()
            )
    return found
