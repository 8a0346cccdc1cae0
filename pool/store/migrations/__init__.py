"""Migrations: published SQL for tables, indexes and triggers, one file per version. Alembic applies
them under a lock, so replicas may start at the same time.

The rules are not part of a version: `pool.store.rules` installs the rules of this code beside those
of the previous release.

Alembic is imported only to migrate, because its import takes as long as all other imports of a
worker process.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from pool.core.errors import PoolError
from pool.store import rules
from pool.store.engine import Store, Tx
from pool.store.errors import translated

if TYPE_CHECKING:
    from alembic.config import Config

_HERE = Path(__file__).parent
_LOCK = 7_264_001


def upgrade(store: Store) -> str:
    """Bring the database to the newest version and return it. Repeating it does nothing."""
    from alembic import command

    with translated(), store.engine.begin() as tx:
        tx.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": _LOCK})
        command.upgrade(_config(tx), "head")
        rules.install(tx)
    return head()


def head() -> str:
    """Return the version that this code needs: the highest number of its files."""
    return max(path.stem for path in (_HERE / "versions").glob("v[0-9]*.py"))


def current(store: Store) -> str | None:
    """Return the version of the database."""
    with store.read() as tx:
        if not inspect(tx).has_table("alembic_version"):
            return None
        found = tx.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        return None if found is None else str(found)


def assert_current(store: Store) -> None:
    """Raise unless schema and rules of the database are those of this code."""
    has, needs = current(store), head()
    if has != needs:
        raise PoolError(
            f"the database schema is at {has or 'nothing'}, this code needs {needs}: run `warmpool migrate`"
        )
    with store.read() as tx:
        if not rules.is_installed(tx):
            raise PoolError(
                f"the database does not have the rules of this code ({rules.schema()}):"
                " run `warmpool migrate`"
            )


def run_sql(tx: Tx, revision: str) -> None:
    """Execute the statements of one version."""
    path = _HERE / "versions" / f"{revision}.sql"
    for statement in path.read_text().split("\n;;\n"):
        tx.exec_driver_sql(statement.strip().replace("%", "%%"))


def _config(tx: Tx | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    return config
