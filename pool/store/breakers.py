"""Breakers: after repeated spawn failures a profile gets no new slots for a growing time.

Other profiles are not affected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, select, update
from sqlalchemy.dialects import postgresql

from pool.core.backoff import Backoff
from pool.core.ids import ProfileName
from pool.store.engine import Tx
from pool.store.schema import breakers as B
from pool.store.sql import ahead, now, plus

# The first failures open no breaker: one bad pod does not prove a bad profile.
FREE_FAILURES = 2
PAUSES = Backoff(first_s=5.0, factor=2.0, limit_s=300.0)
# An end further away than the longest pause was written before the clock stepped back; it is
# ignored.
_OPEN = select(B.c.profile).where(
    B.c.profile == bindparam("profile"), B.c.open_until > now(), ~ahead(B.c.open_until, PAUSES.limit_s)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The recent spawn failures of a profile. While the breaker is open, no spawns are started."""

    profile: ProfileName
    failures: int
    open_until: datetime | None
    why: str


def failed(tx: Tx, profile: ProfileName, why: str) -> None:
    """Record one more consecutive failure, and open the breaker if there are too many."""
    tx.execute(postgresql.insert(B).values(profile=profile, failures=0, why=why).on_conflict_do_nothing())
    row = tx.execute(select(B.c.failures).where(B.c.profile == profile).with_for_update()).one()
    failures = row.failures + 1
    pause_s = PAUSES.nominal(failures - FREE_FAILURES) if failures > FREE_FAILURES else 0.0
    statement = update(B).where(B.c.profile == profile)
    tx.execute(
        statement.values(failures=failures, why=why, open_until=plus(now(), pause_s) if pause_s else None)
    )


def succeeded(tx: Tx, profile: ProfileName) -> None:
    """Close the breaker: a worker of the profile became ready."""
    tx.execute(delete(B).where(B.c.profile == profile))


def is_open(tx: Tx, profile: ProfileName) -> bool:
    return tx.execute(_OPEN, {"profile": profile}).first() is not None


def every(tx: Tx) -> Mapping[ProfileName, Breaker]:
    return {ProfileName(r.profile): Breaker(**r._mapping) for r in tx.execute(select(B))}
