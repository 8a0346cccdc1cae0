"""What the database says, in the project's own words. Every named constraint has its sentence here, once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from pool.errors import BrokenPromise, IllegalMove, PoolError, Transient
from pool.store.triggers import REFUSED_BY_TRIGGER

# SQLite names the columns of a breached unique index, not the index.
_SQLITE_UNIQUE = {
    "workers.claim_id": "one_live_worker_a_claim",
    "claims.worker_id": "one_live_claim_a_worker",
    "requests.org, requests.request_id": "one_request_per_org_and_id",
}
_MOVES = frozenset({"legal_moves_only", "terminal_row_never_comes_back", "every_worker_begins_as_a_slot"})
_RETRY_STATES = frozenset(
    {"40001", "40P01", "57014", "55P03", "57P01", "57P02", "57P03", "53300", "25P03", "25006"}
)


@contextmanager
def translated() -> Iterator[None]:
    """Database errors as `Transient` or `BrokenPromise`."""
    try:
        yield
    except IntegrityError as exc:
        raise _broken(exc) from exc
    except (OperationalError, InterfaceError, PoolTimeout) as exc:
        raise Transient(f"database: {_first_line(exc)}") from exc
    except DBAPIError as exc:
        if exc.connection_invalidated or getattr(exc.orig, "sqlstate", None) in _RETRY_STATES:
            raise Transient(f"database: {_first_line(exc)}") from exc
        raise


def constraint_of(exc: IntegrityError) -> str:
    """The name of the promise that was about to be broken."""
    diag = getattr(exc.orig, "diag", None)
    if diag is not None and diag.constraint_name:
        return str(diag.constraint_name)
    text = str(exc.orig)
    if unique := re.search(r"UNIQUE constraint failed: (.+)", text):
        return _SQLITE_UNIQUE.get(unique.group(1), unique.group(1))
    if check := re.search(r"CHECK constraint failed: (\w+)", text):
        return check.group(1)
    return next((name for name in REFUSED_BY_TRIGGER if name in text), text)


def _broken(exc: IntegrityError) -> PoolError:
    name = constraint_of(exc)
    sentence = f"{name.replace('_', ' ')} ({_first_line(exc)})"
    return IllegalMove(sentence) if name in _MOVES else BrokenPromise(sentence)


def _first_line(exc: Exception) -> str:
    cause = getattr(exc, "orig", None) or exc
    return str(cause).strip().split("\n", 1)[0]
