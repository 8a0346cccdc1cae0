"""Migrations: published SQL for tables, indexes and triggers, one file per version.

A version is of one of two steps (ADR 21). What the running release can work with is applied before a
rollout. What it cannot work with has `_post_` in its name; it is applied when that release is gone:
by `warmpool migrate --finish`, or by the upgrade to the next release. The database records the
newest such version, so that a process knows whether it is too old for a schema newer than its own.

The rules are not part of a version: `pool.store.rules` installs the rules of this code beside those
of other releases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import inspect

from pool.core.errors import PoolError
from pool.store import rules
from pool.store.engine import Store, Tx
from pool.store.migrations import applying

_HERE = Path(__file__).parent
_POST = "_post_"
_NAME = "warmpool"
_MAKE_FLOOR = "CREATE TABLE IF NOT EXISTS schema_floor (version TEXT NOT NULL)"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """What a database has. `floor` is the newest version that only processes which know it can use."""

    version: str | None
    floor: str | None


def versions() -> list[str]:
    """Return the versions of this code, oldest first."""
    return sorted(path.stem for path in (_HERE / "versions").glob("v[0-9]*.py"))


def head() -> str:
    """Return the newest version of this code."""
    return versions()[-1]


def needed() -> str:
    """Return the oldest version of the database with which this code works."""
    return [name for name in versions() if not is_post(name)][-1]


def is_post(version: str) -> bool:
    """Return whether a version is applied only after the release before is gone."""
    return _POST in version


def session_name() -> str:
    """Return the name of this code's sessions: the versions and the rules that they know."""
    return f"{_NAME} {head().partition('_')[0]} {rules.schema()}"


def upgrade(store: Store, say: Progress = lambda _: None) -> str:
    """Apply what the running release can work with, install the rules, and return the version.

    Versions of earlier releases are applied whatever their step, because these releases are gone. So
    is everything in an empty database. Repeating it does nothing.
    """
    with applying.alone(store, say):
        has = state(store).version
        _apply(store, head() if has is None else needed(), say)
        with store.write() as tx:
            applying.unlimited(tx)
            rules.install(tx)
    return state(store).version or ""


def finish(store: Store, say: Progress = lambda _: None) -> str:
    """Apply what is left, and return the version. Raise if sessions of older code are connected."""
    with applying.alone(store, say):
        assert_current(store)
        _apply(store, head(), say)
    return state(store).version or ""


def pending(store: Store) -> list[str]:
    """Return the versions of this code that the database does not have."""
    has = state(store).version or ""
    return [name for name in versions() if name > has]


def state(store: Store) -> SchemaState:
    """Return the version of the database, and its floor."""
    with store.read() as tx:
        tables = inspect(tx).get_table_names()
        return SchemaState(
            version=_single(tx, "SELECT version_num FROM alembic_version", tables),
            floor=_single(tx, "SELECT max(version) FROM schema_floor", tables),
        )


def current(store: Store) -> str | None:
    """Return the version of the database."""
    return state(store).version


def assert_current(store: Store) -> None:
    """Raise unless this code works with the schema of the database, and its rules are installed."""
    if problem := unusable(state(store)):
        raise PoolError(problem)
    with store.read() as tx:
        if not rules.is_installed(tx):
            raise PoolError(
                f"the database does not have the rules of this code ({rules.schema()}):"
                " run `warmpool migrate`"
            )


def unusable(found: SchemaState) -> str | None:
    """Return why this code does not work with a schema, or None."""
    if found.version is None or found.version < needed():
        return (
            f"the database schema is at {found.version or 'nothing'}, this code needs {needed()}:"
            " run `warmpool migrate`"
        )
    if found.floor is not None and found.floor > head():
        return (
            f"the database schema is at {found.version} and has {found.floor}, which is not compatible with"
            f" this code ({head()}): install the newer version"
        )
    return None


def run_sql(tx: Tx, revision: str) -> None:
    """Execute the statements of one version."""
    for statement in _statements(revision):
        tx.exec_driver_sql(statement.replace("%", "%%"))


def _apply(store: Store, last: str, say: Progress) -> None:
    todo = [name for name in pending(store) if name <= last]
    for number, name in enumerate(todo, start=1):
        if is_post(name) and state(store).version is not None:
            _assert_alone(store, name)
        say(f"{name} ({number} of {len(todo)})")
        version = applying.Version(name=name, folder=_HERE, statements=_statements(name))
        marks = (
            (_MAKE_FLOOR, f"INSERT INTO schema_floor (version) VALUES ('{name}')") if is_post(name) else ()
        )
        applying.apply(store, version, marks, say)


def _assert_alone(store: Store, version: str) -> None:
    """Raise if a session of code that does not know this version is connected, or could be unseen."""
    if store.pooled:
        raise PoolError(
            f"{version} cannot be applied through a pooler, which hides the processes that are connected:"
            " run this with the database_url of the server itself and database_pooler = false"
        )
    number = version.partition("_")[0]
    with store.read() as tx:
        names = tx.exec_driver_sql(
            "SELECT DISTINCT application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE %s",
            (f"{_NAME}%",),
        ).scalars()
        older = sorted(name for name in names if (name.split()[1:2] or [""])[0] < number)
    if older:
        raise PoolError(
            f"{version} is not compatible with processes that are connected ({', '.join(older)}):"
            " end the rollout to the release before this one first, or stop them"
        )


def _statements(version: str) -> tuple[str, ...]:
    path = _HERE / "versions" / f"{version}.sql"
    return tuple(part.strip() for part in path.read_text().split("\n;;\n")) if path.exists() else ()


def _single(tx: Tx, query: str, tables: list[str]) -> str | None:
    if query.rpartition(" ")[2] not in tables:
        return None
    found = tx.exec_driver_sql(query).scalar_one_or_none()
    return None if found is None else str(found)
