"""The database: there, at the schema that this code needs, and fit for how it is used."""

from __future__ import annotations

from collections.abc import Iterator

from pool import wiring
from pool.doctor.finding import Finding, Level, Patient, ok
from pool.errors import PoolError
from pool.store import migrations, ping


def reachable(patient: Patient) -> Iterator[Finding]:
    """Whether it answers."""
    try:
        said = ping(patient.store)
    except PoolError as exc:
        yield Finding(
            id="database_reachable", level=Level.BAD, evidence=str(exc), fix="see that it runs and that database_url names it"
        )  # fmt: skip
        return
    yield ok("database_reachable", said)


def schema(patient: Patient) -> Iterator[Finding]:
    """Whether it is at the newest migration."""
    has, needs = migrations.current(patient.store), migrations.head()

    def upgrade() -> str:
        head = migrations.upgrade(patient.store)
        wiring.seed(patient.settings, patient.store)
        return f"schema brought to {head}"

    if has == needs:
        yield ok("schema_current", f"at {has}")
    elif has is not None and has > needs:
        yield Finding(
            id="schema_current", level=Level.BAD, evidence=f"at {has}, newer than this code, which needs {needs}",
            fix="run the newer code, or restore the database of this one",
        )  # fmt: skip
    else:
        yield Finding(
            id="schema_current", level=Level.BAD, evidence=f"at {has or 'nothing'}, this code needs {needs}",
            fix="warmpool migrate", repair=upgrade,
        )  # fmt: skip


def kind(patient: Patient) -> Iterator[Finding]:
    """SQLite is one machine's."""
    if not patient.store.is_postgres and patient.settings.pool.driver != "local":
        yield Finding(
            id="database_kind", level=Level.WARN, evidence=f"SQLite with driver {patient.settings.pool.driver}: the control plane can only run on one machine",
            fix="set database_url to a Postgres that all replicas reach",
        )  # fmt: skip
