"""The list of checks, and how it is run: a check that can not be done is itself a finding and stops no other."""

from __future__ import annotations

from pool.doctor import broker, clocks, database, surroundings, table
from pool.doctor.finding import Check, Finding, Level, Patient
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
    clocks.differences,
    table.worries,
    table.counters,
    table.strangers,
]


def examine(patient: Patient) -> list[Finding]:
    """Everything that every check has to say."""
    found: list[Finding] = []
    for check in CHECKS:
        name = f"{check.__module__.rpartition('.')[2]}_{check.__name__}"
        try:
            found += check(patient)
        except (PoolError, OSError) as exc:
            found.append(
                Finding(
                    id=name,
                    level=Level.BAD,
                    evidence=f"could not be checked: {exc}",
                    fix="mend what is above",
                )
            )
    return found
