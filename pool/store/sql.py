"""What many statements are made of: instants, the database's clock and arithmetic on it, JSON and prose."""

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
    """An aware datetime, read as UTC whatever the session's time zone is."""

    impl = TIMESTAMP(timezone=True)
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        return None if value is None else value.astimezone(UTC)


class JsonText(TypeDecorator[Any]):
    """JSON kept as text: the pool never looks inside it with SQL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else json.dumps(value, separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:  # noqa: ARG002
        return None if value is None else json.loads(value)


def prose(value: str) -> str:
    """Any words, as they can be written."""
    if not value.isascii():
        value = value.encode(errors="backslashreplace").decode()
    return value.replace("\0", "\\x00")[:_LONGEST_PROSE]


class Prose(TypeDecorator[str]):
    """Words for people, which may have come from anybody: whatever they are, they can be written. Postgres takes no NUL, and no database half a
    character; what is too long is cut."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else prose(value)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as SQL
    """The database's clock, which tests may shift (`clock.shift_s`). A scalar subquery, so that it is read once per
    statement and an index can be searched with it."""

    type = Instant()
    name = "now"
    inherit_cache = True


@compiles(now)
def _now(element: now, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ARG001
    return PG_NOW


class plus(FunctionElement[datetime]):  # noqa: N801 - reads as SQL
    """`plus(instant, seconds)`: an instant moved by seconds, either of which may be a column."""

    type = Instant()
    name = "plus"
    inherit_cache = True


class minutes_ago(FunctionElement[int]):  # noqa: N801 - reads as SQL
    """`minutes_ago(instant)`: how many whole minutes lie between an instant and the database's now."""

    type = Integer()
    name = "minutes_ago"
    inherit_cache = True


@compiles(minutes_ago)
def _minutes_ago(element: minutes_ago, compiler: SQLCompiler, **kw: Any) -> str:
    (instant,) = (compiler.process(c, **kw) for c in element.clauses)
    return f"FLOOR(EXTRACT(EPOCH FROM ({PG_NOW} - {instant})) / 60)::int"


# So far ahead of now an instant may be and still have just been written: by a transaction that began later and committed while this statement waited for
# its lock. What is further ahead was written before the clock stepped back, and says nothing of its age.
AHEAD_S = 10.0


def younger_than(instant: Any, seconds: float) -> ColumnElement[bool]:
    """Whether an instant lies less than this in the past. One in the future is never young: whoever believed it would wait until the clock has come
    there again."""
    return and_(instant > plus(now(), -float(seconds)), ~ahead(instant, min(float(seconds), AHEAD_S)))


def ahead(instant: Any, seconds: float = AHEAD_S) -> ColumnElement[bool]:
    """Whether an instant was written before the clock stepped back."""
    return cast("ColumnElement[bool]", instant > plus(now(), float(seconds)))


def word(value: str) -> ColumnElement[str]:
    """A word that is part of the statement: an index over the rows with this word serves it also where a plan is made before the parameters are known."""
    return bindparam(None, str(value), type_=Text(), literal_execute=True)


def words(values: Iterable[str]) -> BindParameter[Any]:
    """The same for `in_`."""
    return bindparam(None, sorted(str(v) for v in values), type_=Text(), expanding=True, literal_execute=True)


def number(value: int) -> ColumnElement[int]:
    """The same for a number, such as how many rows a statement is to take: whether an index is worth it depends on that."""
    return bindparam(None, value, type_=Integer(), literal_execute=True)


NONE_AT_ALL: ColumnElement[int] = literal_column("0", Integer())


def at(instant: datetime) -> ColumnElement[datetime]:
    """An instant that was read from the database, given back to it."""
    return literal(instant, Instant())


@compiles(plus)
def _plus(element: plus, compiler: SQLCompiler, **kw: Any) -> str:
    instant, seconds = (compiler.process(c, **kw) for c in element.clauses)
    return f"({instant} + make_interval(secs => ({seconds})::float8))"
