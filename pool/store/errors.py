"""Translate database errors into the project's errors.

The name of a violated constraint becomes the error text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pool.core.errors import BrokenPromise, IllegalMove, PoolError, Transient

_MOVES = frozenset({"legal_moves_only", "terminal_row_never_comes_back", "every_worker_begins_as_a_slot"})
_RETRY_STATES = frozenset(
    {"40001", "40P01", "57014", "55P03", "57P01", "57P02", "57P03", "53300", "25P03", "25006", "26000"}
)
# SQLSTATEs of a server that is not the primary: read-only, and shutting down or recovering.
_ELSEWHERE = frozenset({"25006", "57P01", "57P02", "57P03"})
# SQLSTATEs for a table, a column, a function or a schema that does not exist in the database.
_UNKNOWN_NAMES = frozenset({"42P01", "42703", "42883", "3F000"})
_NO_RIGHTS = "42501"


@contextmanager
def translated() -> Iterator[None]:
    """Raise database errors as `Transient` or `BrokenPromise`, and a schema of another version as
    `PoolError`.
    """
    try:
        yield
    except IntegrityError as exc:
        raise _broken(exc) from exc
    except (OperationalError, InterfaceError, PoolTimeout) as exc:
        raise Transient(f"database: {_first_line(exc)}") from exc
    except DBAPIError as exc:
        state = getattr(exc.orig, "sqlstate", None)
        if exc.connection_invalidated or state in _RETRY_STATES:
            raise Transient(f"database: {_first_line(exc)}") from exc
        if state in _UNKNOWN_NAMES:
            raise PoolError(f"database: {_first_line(exc)}: run `warmpool migrate`") from exc
        if state == _NO_RIGHTS:
            raise PoolError(
                f"database: {_first_line(exc)}: the user of database_url must own the database's tables,"
                " or be allowed to create them"
            ) from exc
        raise


def is_elsewhere(exc: BaseException | None) -> bool:
    """Return whether a driver's error means that writes must go to another server."""
    return getattr(exc, "sqlstate", None) in _ELSEWHERE


def constraint_of(exc: IntegrityError) -> str:
    """Return the name of the violated constraint."""
    diag = getattr(exc.orig, "diag", None)
    return str(getattr(diag, "constraint_name", None) or exc.orig)


def _broken(exc: IntegrityError) -> PoolError:
    name = constraint_of(exc)
    sentence = f"{name.replace('_', ' ')} ({_first_line(exc)})"
    return IllegalMove(sentence) if name in _MOVES else BrokenPromise(sentence)


def _first_line(exc: Exception) -> str:
    cause = getattr(exc, "orig", None) or exc
    return str(cause).strip().split("\n", 1)[0]
