"""Checks of the database: reachable, and at the schema of this version."""

from __future__ import annotations

from collections.abc import Iterator

from pool import wiring
from pool.core.errors import PoolError
from pool.ops.doctor.finding import Finding, Installation, Level, ok
from pool.store import migrations, ping


def reachable(installation: Installation) -> Iterator[Finding]:
    """Check that the database answers."""
    try:
        version = ping(installation.store)
    except PoolError as exc:
        yield Finding(
            id="database_reachable", level=Level.BAD, evidence=str(exc),
            fix="check that the database runs and that database_url is right",
        )  # fmt: skip
        return
    yield ok("database_reachable", version)


def schema(installation: Installation) -> Iterator[Finding]:
    """Check that the database has the newest schema."""
    has, needs = migrations.current(installation.store), migrations.head()

    def upgrade() -> str:
        head = migrations.upgrade(installation.store)
        wiring.seed(installation.settings, installation.store)
        return f"schema upgraded to {head}"

    if has == needs:
        yield ok("schema_current", f"schema {has}")
    elif has is not None and has > needs:
        yield Finding(
            id="schema_current", level=Level.BAD,
            evidence=f"the database has schema {has}, which is newer than {needs}, the schema of "
                     "this version",
            fix="install the newer warmpool version, or restore a backup with the older schema",
        )  # fmt: skip
    else:
        yield Finding(
            id="schema_current", level=Level.BAD,
            evidence=f"the database has {f'schema {has}' if has else 'no schema'}, and this "
                     f"version needs {needs}",
            fix="run: warmpool migrate", repair=upgrade,
        )  # fmt: skip
