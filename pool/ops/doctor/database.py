"""Checks of the database: reachable, and at the schema of this version."""

from __future__ import annotations

from collections.abc import Iterator

from pool import wiring
from pool.core import connections
from pool.core.errors import PoolError
from pool.ops.doctor.finding import Finding, Installation, Level, ok
from pool.store import migrations, most_connections, ping


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


def connection_budget(installation: Installation) -> Iterator[Finding]:
    """Check that the server accepts the connections of two workers of each role during a rollout."""
    pool = installation.settings.pool
    allowed, needed = most_connections(installation.store), connections.of_a_rollout(pool)
    each = ", ".join(f"{role} {most}" for role, most in connections.most(pool).items())
    seen = f"one process opens at most: {each}. A rollout with two of each worker needs {needed}, the server has {allowed}"
    if needed <= allowed or pool.database_pooler:
        yield ok("database_connections", seen)
        return
    yield Finding(
        id="database_connections", level=Level.WARN, evidence=seen,
        fix="raise max_connections of the server, lower database_connections or acquire_threads, or use a pooler",
    )  # fmt: skip


def schema(installation: Installation) -> Iterator[Finding]:
    """Check that this version works with the schema of the database."""
    found = migrations.state(installation.store)

    def upgrade() -> str:
        version = migrations.upgrade(installation.store)
        wiring.seed(installation.settings, installation.store)
        return f"schema upgraded to {version}"

    if problem := migrations.unusable(found):
        is_newer = found.version is not None and found.version > migrations.head()
        yield Finding(
            id="schema_current", level=Level.BAD, evidence=problem,
            fix="install the newer warmpool version, or restore a backup with the older schema"
            if is_newer else "run: warmpool migrate",
            repair=None if is_newer else upgrade,
        )  # fmt: skip
        return
    try:
        migrations.assert_current(installation.store)
    except PoolError as exc:
        yield Finding(
            id="schema_current",
            level=Level.BAD,
            evidence=str(exc),
            fix="run: warmpool migrate",
            repair=upgrade,
        )
        return
    left = migrations.pending(installation.store)
    yield ok(
        "schema_current",
        f"schema {found.version}"
        + (f"; left for `warmpool migrate --finish`: {', '.join(left)}" if left else ""),
    )
