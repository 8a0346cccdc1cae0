"""The version of each org's key, and how long the previous version is accepted.

Keys are not stored; they are derived from the master key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql

from pool.core.ids import OrgId
from pool.core.signing import FIRST_VERSION
from pool.store.engine import Tx
from pool.store.schema import org_keys as K
from pool.store.sql import now, plus


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The key versions that an org may sign with."""

    newest: int = FIRST_VERSION
    older_too: bool = False

    def accepts(self, version: int) -> bool:
        return version == self.newest or (self.older_too and version == self.newest - 1)


def every(tx: Tx) -> Mapping[OrgId, Versions]:
    """Return the versions of all orgs whose key was changed at least once, by the database's clock."""
    older = func.coalesce(K.c.older_until > now(), False).label("older")
    return {
        OrgId(r.org): Versions(newest=r.version, older_too=bool(r.older))
        for r in tx.execute(select(K.c.org, K.c.version, older))
    }


def newest(tx: Tx, org: OrgId) -> int:
    """Return the newest key version of an org."""
    found = tx.execute(select(K.c.version).where(K.c.org == org)).scalar_one_or_none()
    return FIRST_VERSION if found is None else int(found)


def change(tx: Tx, org: OrgId, *, overlap_s: float) -> int:
    """Create a new version and return its number.

    The previous version is accepted for `overlap_s` seconds (0: not at all); older ones are not
    accepted.
    """
    until = plus(now(), float(overlap_s)) if overlap_s > 0 else None
    made = postgresql.insert(K).values(
        org=org, version=FIRST_VERSION + 1, older_until=until, changed_at=now()
    )
    changed = made.on_conflict_do_update(
        index_elements=[K.c.org],
        set_={"version": K.c.version + 1, "older_until": until, "changed_at": now()},
    )
    return int(tx.execute(changed.returning(K.c.version)).scalar_one())
