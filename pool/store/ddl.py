"""Tables, indexes and triggers as statements.

A test checks that the migrations create the same schema.
"""

from __future__ import annotations

from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from pool.store import triggers
from pool.store.schema import metadata
from pool.store.sql import PG_NOW


def statements() -> list[str]:
    """Return the statements that create the schema in an empty database, in order."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    tables = metadata.sorted_tables
    indexes = sorted((i for t in tables for i in t.indexes), key=lambda i: str(i.name))
    return [
        *(str(CreateTable(t).compile(dialect=dialect)).strip() for t in tables),
        *(str(CreateIndex(i).compile(dialect=dialect)).strip() for i in indexes),
        *triggers.statements(),
        "INSERT INTO clock (id, shift_s) VALUES (1, 0)",
        (
            "INSERT INTO pool (id, live, lane_open_since, canary_at, began_at)"
            f" VALUES (1, 0, {PG_NOW}, {PG_NOW}, {PG_NOW})"
        ),
    ]
