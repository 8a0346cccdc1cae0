"""The rules by which claims begin, wait, are handed over, renewed and ended: database functions in
`sql/*.sql`. Each takes one JSON value and decides in one statement.

The functions are in a schema that is named after a hash of their text. A release that changes a
rule adds a schema and replaces nothing, so processes of two releases run side by side, each with
its own rules.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from pool.store.engine import Tx

_FOLDER = Path(__file__).parent / "sql"
_PREFIX = "warmpool_"
# Schemas beside that of this code which are kept even if no session uses them: a rollback to the
# previous release needs its rules.
_KEPT_UNUSED = 1


@cache
def functions() -> tuple[str, ...]:
    """Return the statements that create the functions, in order, without a schema."""
    return tuple(
        statement.strip()
        for path in sorted(_FOLDER.glob("*.sql"))
        for statement in path.read_text().split("\n;;\n")
    )


@cache
def schema() -> str:
    """Return the name of the schema with the rules of this code."""
    return f"rules_{hashlib.sha256(chr(0).join(functions()).encode()).hexdigest()[:12]}"


def qualified(statement: str) -> str:
    """Return the statement with the schema before the name of every rule."""
    return statement.replace(_PREFIX, f"{schema()}.{_PREFIX}")


def install(tx: Tx) -> None:
    """Create the rules of this code unless they exist. Drop others, except those of the previous
    release and those whose processes are connected.
    """
    if not is_installed(tx):
        tx.exec_driver_sql(f"CREATE SCHEMA {schema()}")
        for statement in functions():
            tx.exec_driver_sql(qualified(statement).replace("%", "%%"))
    older = tx.exec_driver_sql(
        "SELECT nspname, EXISTS (SELECT 1 FROM pg_stat_activity"
        "   WHERE datname = current_database() AND application_name LIKE '%%' || nspname)"
        " FROM pg_namespace WHERE nspname ~ '^rules_[0-9a-f]{12}$' AND nspname <> %s ORDER BY oid DESC",
        (schema(),),
    ).all()
    for name, is_in_use in older[_KEPT_UNUSED:]:
        if not is_in_use:
            tx.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")


def is_installed(tx: Tx) -> bool:
    """Return whether the database has the rules of this code."""
    return tx.exec_driver_sql("SELECT to_regnamespace(%s)", (schema(),)).scalar_one() is not None


class Asks(Protocol):
    """A store or a connection. Each call is a transaction of its own."""

    def ask(self, statement: str, argument: str) -> str | None: ...


class Within:
    """Calls rules inside a transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    def ask(self, statement: str, argument: str) -> str | None:
        found: str | None = self._tx.exec_driver_sql(statement, (argument,)).scalar_one()
        return found


def call(where: Asks, rule: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Call one rule. Return None if it did not apply and nothing was written."""
    found = where.ask(f"SELECT {schema()}.{_PREFIX}{rule}(%s::jsonb)::text", json.dumps(asked))
    return None if found is None else json.loads(found)
