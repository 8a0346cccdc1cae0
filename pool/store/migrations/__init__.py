"""Migrations: frozen SQL, one folder a version, applied by Alembic under a lock so that replicas may start together."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from pool.errors import PoolError
from pool.store.engine import Store, Tx
from pool.store.errors import translated

_HERE = Path(__file__).parent
_LOCK = 7_264_001


def upgrade(store: Store) -> str:
    """Bring the database to the newest version; repeating it does nothing. Returns that version."""
    with translated(), store.engine.begin() as tx:
        if store.is_postgres:
            tx.execute(text("SELECT pg_advisory_xact_lock(:k)"), {"k": _LOCK})
        command.upgrade(_config(tx), "head")
    return head()


def head() -> str:
    """The version this code needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def current(store: Store) -> str | None:
    """The version the database has."""
    with store.read() as tx:
        return MigrationContext.configure(tx).get_current_revision()


def assert_current(store: Store) -> None:
    """Refuse to run on a schema that is not this code's."""
    has, needs = current(store), head()
    if has != needs:
        raise PoolError(
            f"the database schema is at {has or 'nothing'}, this code needs {needs}: run `warmpool migrate`"
        )


def run_sql(tx: Tx, revision: str) -> None:
    """The frozen statements of one version for this backend."""
    path = _HERE / "versions" / f"{revision}.{tx.dialect.name}.sql"
    for statement in path.read_text().split("\n;;\n"):
        if statement.strip():
            tx.exec_driver_sql(
                statement.strip().replace("%", "%%") if tx.dialect.name == "postgresql" else statement.strip()
            )


def _config(tx: Tx | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    return config
