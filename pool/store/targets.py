"""Warm targets that operators have set. They take precedence over the configuration."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects import postgresql

from pool.core.ids import ProfileName
from pool.core.settings import Profile
from pool.store.engine import Tx
from pool.store.schema import targets as T
from pool.store.sql import now

_OF = select(T.c.warm_target).where(T.c.profile == bindparam("profile"))


def every(tx: Tx) -> dict[ProfileName, int]:
    """Return the targets that an operator has set."""
    return {ProfileName(p): n for p, n in tx.execute(select(T.c.profile, T.c.warm_target))}


def of(tx: Tx, profile: Profile) -> int:
    """Return the effective target of this profile."""
    found = tx.execute(_OF, {"profile": profile.name}).scalar_one_or_none()
    return profile.warm_target if found is None else int(found)


def in_force(tx: Tx, profiles: Mapping[str, Profile]) -> dict[ProfileName, int]:
    """Return the effective targets of these profiles."""
    by_operator = every(tx)
    return {ProfileName(n): by_operator.get(ProfileName(n), p.warm_target) for n, p in profiles.items()}


def set_target(tx: Tx, profile: ProfileName, warm_target: int, *, who: str) -> None:
    """Set the target of a profile."""
    values = {"warm_target": warm_target, "set_by": who, "set_at": now()}
    statement = postgresql.insert(T).values(profile=profile, **values)
    tx.execute(statement.on_conflict_do_update(index_elements=[T.c.profile], set_=values))


def forget(tx: Tx, profile: ProfileName) -> None:
    """Delete the operator's target: the configuration applies again."""
    tx.execute(delete(T).where(T.c.profile == profile))
