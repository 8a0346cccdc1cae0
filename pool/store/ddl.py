"""The whole schema as statements, for each backend. Migrations are frozen copies of what this said; a test holds the two
together."""

from __future__ import annotations

from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from pool.store import fastpath, triggers
from pool.store.schema import metadata
from pool.store.sql import PG_NOW, SQLITE_NOW


def statements(backend: str) -> list[str]:
    """Every statement that makes an empty database ready, in order."""
    dialect = postgresql.dialect() if backend == "postgresql" else sqlite.dialect()  # type: ignore[no-untyped-call]
    tables = metadata.sorted_tables
    made = [str(CreateTable(t).compile(dialect=dialect)).strip() for t in tables]
    indexes = sorted((i for t in tables for i in t.indexes), key=lambda i: str(i.name))
    made += [str(CreateIndex(i).compile(dialect=dialect)).strip() for i in indexes]
    made += [*triggers.postgres(), *fastpath.FUNCTIONS] if backend == "postgresql" else triggers.sqlite()
    now = PG_NOW if backend == "postgresql" else SQLITE_NOW
    return [
        *made,
        "INSERT INTO clock (id, shift_s) VALUES (1, 0)",
        f"INSERT INTO pool (id, live, lane_open_since, canary_at, began_at) VALUES (1, 0, {now}, {now}, {now})",
    ]
