"""The list of checks, and how it is run. A check that cannot run becomes a finding and does not stop the
others."""

from __future__ import annotations

from collections.abc import Iterable

from pool.core.errors import PoolError
from pool.ops.doctor import broker, ceiling, clocks, cluster, database, disruption, surroundings, table
from pool.ops.doctor.finding import Check, Finding, Installation, Level, unchecked

# In the order of dependencies: an early failure explains the later ones.
CHECKS: list[Check] = [
    surroundings.time_budgets,
    surroundings.data_dir,
    database.reachable,
    database.schema,
    database.connection_budget,
    broker.reachable,
    broker.mode,
    broker.version,
    broker.policy,
    broker.persistence,
    broker.queues,
    cluster.reachable,
    cluster.rights,
    disruption.priorities,
    disruption.budget,
    ceiling.node_ceiling,
    clocks.differences,
    table.worries,
    table.counters,
    table.strangers,
    table.old_keys,
]

# Findings that other checks depend on: once one is bad, checks that fail because of it are `unchecked`, not
# bad.
ROOTS = frozenset({"database_reachable", "schema_current", "redis_reachable", "cluster_reachable"})


def examine(installation: Installation) -> list[Finding]:
    """Run all checks and return their findings."""
    return run_all(installation, CHECKS)


def run_all(installation: Installation, checks: Iterable[Check]) -> list[Finding]:
    """Run these checks and return their findings."""
    installation.cluster_answers = False
    found: list[Finding] = []
    for check in checks:
        name = f"{check.__module__.rpartition('.')[2]}_{check.__name__}"
        try:
            found += check(installation)
        except (PoolError, OSError) as exc:
            found.append(_not_done(name, exc, found))
    return found


def _not_done(name: str, exc: PoolError | OSError, before: list[Finding]) -> Finding:
    """Return the finding for a check that could not run: `unchecked` if a finding it depends on is bad
    already."""
    if any(f.level is Level.BAD and f.id in ROOTS for f in before):
        return unchecked(name, f"{exc}; fix the errors above first")
    return Finding(
        id=name,
        level=Level.BAD,
        evidence=f"the check failed: {exc}",
        fix="fix the cause in this message, then run the doctor again",
    )
