"""Parts of SQL statements: instants, the database's clock and arithmetic on it, JSON, and free text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Dialect,
    Integer,
    Text,
    and_,
    bindparam,
    literal,
    literal_column,
)
from sqlalchemy.dialects.postgresql import TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

_LONGEST_PROSE = 4000
PG_NOW = "(SELECT clock_timestamp() + make_interval(secs => shift_s) FROM clock)"


class Instant(TypeDecorator[datetime]):
    """An aware datetime, returned in UTC whatever the time zone of the session."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON stored as text, because no statement reads inside it."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


def prose(value: str) -> str:
    """Return the text in a form that Postgres can store: without NUL and lone surrogates, and cut
    at the limit.
    """
    if not value.isascii():
        value = value.encode(errors="backslashreplace").decode()
    return value.replace("\0", "\\x00")[:_LONGEST_PROSE]


class Prose(TypeDecorator[str]):
    """Free text from any source.

    NUL, which Postgres does not accept, and lone surrogates are escaped; text above the limit is
    cut.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else prose(value)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as SQL
    """The database's clock, which tests may shift (`clock.shift_s`).

    A scalar subquery, so that it is evaluated once per statement and an index can use it.
    """

    type = Instant()
    name = "now"
    inherit_cache = True


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return PG_NOW


class plus(FunctionElement[datetime]):  # noqa: N801 - reads as SQL
    """`plus(instant, seconds)`: an instant moved by seconds. Either may be a column."""

    type = Instant()
    name = "plus"
    inherit_cache = True


class minutes_ago(FunctionElement[int]):  # noqa: N801 - reads as SQL
    """`minutes_ago(instant)`: the whole minutes between an instant and the database's time."""

    type = Integer()
    name = "minutes_ago"
    inherit_cache = True


@compiles(minutes_ago)
def _minutes_ago(element: minutes_ago, compiler: SQLCompiler, **kw: Any) -> str:
    (instant,) = (compiler.process(c, **kw) for c in element.clauses)
    return f"FLOOR(EXTRACT(EPOCH FROM ({PG_NOW} - {instant})) / 60)::int"


# How far ahead of now an instant may be: a transaction that started later may have written it and
# committed while this statement waited for its lock. An instant further ahead was written before
# the clock stepped back, and its age is not known.
AHEAD_S = 10.0


def younger_than(instant: Any, seconds: float) -> ColumnElement[bool]:
    """Return whether an instant is less than `seconds` in the past.

    An instant in the future is not young, because it would stay young until the clock reaches it
    again.
    """
    return and_(instant > plus(now(), -float(seconds)), ~ahead(instant, min(float(seconds), AHEAD_S)))


def ahead(instant: Any, seconds: float = AHEAD_S) -> ColumnElement[bool]:
    """Return whether an instant was written before the clock stepped back."""
    return cast("ColumnElement[bool]", instant > plus(now(), float(seconds)))


def word(value: str) -> ColumnElement[str]:
    """Return a text that is a literal in the statement.

    A partial index on this value then also serves a generic plan, which is made without parameter
    values.
    """
    return bindparam(None, str(value), type_=Text(), literal_execute=True)


def words(values: Iterable[str]) -> BindParameter[Any]:
    """Return a list of literals for `in_`."""
    return bindparam(None, sorted(str(v) for v in values), type_=Text(), expanding=True, literal_execute=True)


def number(value: int) -> ColumnElement[int]:
    """Return a number that is a literal in the statement, such as a LIMIT, because the choice of an
    index depends on it.
    """
    return bindparam(None, value, type_=Integer(), literal_execute=True)


ZERO: ColumnElement[int] = literal_column("0", Integer())


def at(instant: datetime) -> ColumnElement[datetime]:
    """Return a time that was read from the database as a parameter."""
    return literal(instant, Instant())


@compiles(plus)
def _plus(element: plus, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(c, **kw) for c in element.clauses)
    return f"({instant} + make_interval(secs => ({seconds})::float8))"
