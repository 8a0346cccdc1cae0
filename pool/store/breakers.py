"""Breakers: a profile whose spawns keep failing waits longer each time, says why, and holds nobody else's slots."""

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

# The first failures cost nothing: one bad pod is not a bad profile.
FREE_FAILURES = 2
PAUSES = Backoff(first_s=5.0, factor=2.0, limit_s=300.0)
# No pause is longer than the longest: one that seems so was written before the clock stepped back.
_OPEN = select(B.c.profile).where(
    B.c.profile == bindparam("profile"), B.c.open_until > now(), ~ahead(B.c.open_until, PAUSES.limit_s)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A profile's recent failures; open while no spawns are made."""

    profile: ProfileName
    failures: int
    open_until: datetime | None
    why: str


def failed(tx: Tx, profile: ProfileName, why: str) -> None:
    """One more failure in a row."""
    tx.execute(postgresql.insert(B).values(profile=profile, failures=0, why=why).on_conflict_do_nothing())
    row = tx.execute(select(B.c.failures).where(B.c.profile == profile).with_for_update()).one()
    failures = row.failures + 1
    pause_s = PAUSES.nominal(failures - FREE_FAILURES) if failures > FREE_FAILURES else 0.0
    statement = update(B).where(B.c.profile == profile)
    tx.execute(
        statement.values(failures=failures, why=why, open_until=plus(now(), pause_s) if pause_s else None)
    )


def succeeded(tx: Tx, profile: ProfileName) -> None:
    """A worker became ready: the profile can."""
    tx.execute(delete(B).where(B.c.profile == profile))


def is_open(tx: Tx, profile: ProfileName) -> bool:
    return tx.execute(_OPEN, {"profile": profile}).first() is not None


def every(tx: Tx) -> Mapping[ProfileName, Breaker]:
    return {ProfileName(r.profile): Breaker(**r._mapping) for r in tx.execute(select(B))}
