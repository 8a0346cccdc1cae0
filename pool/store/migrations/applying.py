"""Apply one version while the pool works on the same tables.

- One process at a time migrates. Others wait without a snapshot, because an index that is built
  CONCURRENTLY waits for every snapshot that is older.
- No statement has a time limit. A statement that needs a lock waits for it 200 ms at most, because
  everything that wants the same table queues behind it; then the version is rolled back and tried
  again.
- A version with CONCURRENTLY or `-- repeat` runs outside of a transaction, each statement by itself.
  What was done stays done when it is run again. `-- repeat` is for rows that are changed in parts:
  the statement runs until it changes none.

Alembic is imported only to migrate, because its import takes as long as all other imports of a worker
process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import OperationalError

from pool.core.backoff import Backoff, retrying
from pool.core.clock import SystemClock
from pool.core.errors import PoolError, Transient
from pool.store.engine import Store, Tx
from pool.store.errors import translated

if TYPE_CHECKING:
    from alembic.config import Config

T = TypeVar("T")
_LOCK = 7_264_001
_LOCK_TIMEOUT_MS = 200
_LOCK_NOT_AVAILABLE = "55P03"
# Long enough for a backup or a report that holds a table: about five minutes.
_TRIES = Backoff(first_s=0.2, factor=1.5, limit_s=5.0, tries=70)
_ASK_AGAIN_S = 0.25
_REPEAT = "-- repeat"
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY IF NOT EXISTS (\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version. `folder` is that of the migrations."""

    name: str
    folder: Path
    statements: Sequence[str]

    @property
    def is_by_parts(self) -> bool:
        """Whether its statements run one by one, outside of a transaction."""
        return any("CONCURRENTLY" in each or each.startswith(_REPEAT) for each in self.statements)


@contextmanager
def alone(store: Store, say: Callable[[str], None]) -> Iterator[None]:
    """Run the block while no other process migrates."""
    with translated(), store.engine.connect() as tx:
        clock, never, told = SystemClock(), threading.Event(), False
        unlimited(tx)
        while not tx.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({_LOCK})").scalar_one():
            # psycopg prepares a statement at its sixth execution in one transaction, and a prepared one
            # keeps its snapshot until the next.
            tx.rollback()
            if not told:
                say("another process migrates; waiting for it")
                told = True
            clock.wait(never, _ASK_AGAIN_S)
            unlimited(tx)
        yield


def unlimited(tx: Tx) -> None:
    """Let this transaction's statements run, and the transaction be idle, without a time limit.

    If the host of this process is gone, the server ends the transaction after a minute instead of hours.
    """
    tx.exec_driver_sql(
        "SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),"
        " set_config('idle_in_transaction_session_timeout', '0', true),"
        " set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),"
        " set_config('tcp_keepalives_count', '3', true)"
    )


def apply(store: Store, version: Version, marks: Sequence[str], say: Callable[[str], None]) -> None:
    """Apply a version and record it. `marks` are recorded with it."""
    with translated():
        if version.is_by_parts:
            _by_parts(store, version, marks, say)
        else:
            _locking(lambda: _at_once(store, version, marks), say)


def _at_once(store: Store, version: Version, marks: Sequence[str]) -> None:
    """Apply the version in one transaction."""
    from alembic import command

    with store.engine.begin() as tx:
        unlimited(tx)
        tx.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_TIMEOUT_MS}")
        command.upgrade(_config(version, tx), version.name)
        for statement in marks:
            tx.exec_driver_sql(statement)


def _by_parts(store: Store, version: Version, marks: Sequence[str], say: Callable[[str], None]) -> None:
    """Apply each statement by itself, then record the version.

    The marks are first, so that no process starts that does not work with a part of it.
    """
    from alembic import command

    if store.pooled:
        raise PoolError(
            f"{version.name} cannot be applied through a pooler: run `warmpool migrate` with the"
            " database_url of the server itself and database_pooler = false"
        )
    with store.engine.begin() as tx:
        for statement in marks:
            tx.exec_driver_sql(statement)
    single = store.engine.execution_options(isolation_level="AUTOCOMMIT")
    with single.connect() as tx:
        # Its limits belong to this session, which is closed afterwards.
        tx.detach()
        tx.exec_driver_sql("SET statement_timeout = 0")
        for number, statement in enumerate(version.statements, start=1):
            say(f"  {number} of {len(version.statements)}: {_summary(statement)}")
            _one(tx, statement, say)
    with store.engine.begin() as tx:
        unlimited(tx)
        command.stamp(_config(version, tx), version.name)


def _one(tx: Tx, statement: str, say: Callable[[str], None]) -> None:
    waits = 0 if "CONCURRENTLY" in statement else _LOCK_TIMEOUT_MS
    # An index that is built CONCURRENTLY waits for other transactions, and holds up none.
    tx.exec_driver_sql(f"SET lock_timeout = {waits}")
    if (found := _INDEX.search(statement)) and _is_invalid(tx, found[1]):
        tx.exec_driver_sql(f"DROP INDEX CONCURRENTLY IF EXISTS {found[1]}")
    escaped = statement.replace("%", "%%")
    changed = _locking(lambda: tx.exec_driver_sql(escaped).rowcount, say)
    total = 0
    while statement.startswith(_REPEAT) and changed > 0:
        total += changed
        say(f"  {total} rows")
        changed = _locking(lambda: tx.exec_driver_sql(escaped).rowcount, say)


def _locking(call: Callable[[], T], say: Callable[[str], None]) -> T:
    """Try again while a lock is held by others."""

    def attempt() -> T:
        try:
            return call()
        except OperationalError as exc:
            if getattr(exc.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            say("  a table is locked by another transaction; trying again")
            raise Transient(
                "a table stayed locked by other transactions: run `warmpool migrate` again"
            ) from exc

    return retrying(attempt, policy=_TRIES, clock=SystemClock())


def _is_invalid(tx: Tx, index: str) -> bool:
    """Return whether an earlier attempt left this index unfinished."""
    found = tx.exec_driver_sql(
        "SELECT 1 FROM pg_index WHERE indexrelid = to_regclass(%s) AND NOT indisvalid", (index,)
    )
    return found.first() is not None


def _summary(statement: str) -> str:
    return " ".join(statement.removeprefix(_REPEAT).split())[:70]


def _config(version: Version, tx: Tx) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(version.folder))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = tx
    return config
