"""The list of checks, and how it is run: a check that can not be done is itself a finding and stops no other."""

from __future__ import annotations

from collections.abc import Iterable

from pool.doctor import broker, clocks, cluster, database, disruption, surroundings, table
from pool.doctor.finding import Check, Finding, Level, Patient, unchecked
from pool.errors import PoolError

# In the order in which things depend on each other: what is wrong first explains what is wrong later.
CHECKS: list[Check] = [
    surroundings.time_budgets,
    surroundings.data_dir,
    database.reachable,
    database.schema,
    database.kind,
    broker.reachable,
    broker.version,
    broker.policy,
    broker.persistence,
    broker.queues,
    cluster.reachable,
    cluster.rights,
    disruption.priorities,
    disruption.budget,
    disruption.node_ceiling,
    clocks.differences,
    table.worries,
    table.counters,
    table.strangers,
    table.old_keys,
]

# What others need: once one of these is bad, what can not be checked for it is not told as bad again.
ROOTS = frozenset({"database_reachable", "schema_current", "redis_reachable", "cluster_reachable"})


def examine(patient: Patient) -> list[Finding]:
    """Everything that every check has to say."""
    return run_all(patient, CHECKS)


def run_all(patient: Patient, checks: Iterable[Check]) -> list[Finding]:
    """What these have to say."""
    patient.cluster_answers = False
    found: list[Finding] = []
    for check in checks:
        name = f"{check.__module__.rpartition('.')[2]}_{check.__name__}"
        try:
            found += check(patient)
        except (PoolError, OSError) as exc:
            found.append(_not_done(name, exc, found))
    return found


def _not_done(name: str, exc: PoolError | OSError, before: list[Finding]) -> Finding:
    """A check that could not be done. What it needs may have been found away already: then that is what is wrong."""
    if any(f.level is Level.BAD and f.id in ROOTS for f in before):
        return unchecked(name, f"{exc}; mend what is above first")
    return Finding(
        id=name, level=Level.BAD, evidence=f"could not be checked: {exc}", fix="mend what it names"
    )
