"""The connection to the database: engines, transactions, the clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from pool.core.errors import PoolError
from pool.store.errors import translated
from pool.store.sql import Instant
from pool.store.sql import now as now_sql

Tx = Connection
IDLE_IN_TRANSACTION_S = 3.0
_NOW = select(now_sql())
_LOCK_RECONCILE = text("SELECT pg_advisory_xact_lock(hashtextextended(:k, 8))")


class Store:
    """The durable table of the pool. Threads may share it; each transaction has its own connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._moment = engine.execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """One transaction. It commits when the block ends, and nothing of it remains if the block raises."""
        with translated(), self.engine.begin() as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """Reads that hold no lock; each statement sees what is committed when it starts."""
        with translated(), self._single.connect() as tx:
            yield tx

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """Several reads that see one moment."""
        with translated(), self._moment.connect() as tx, tx.begin():
            yield tx

    def ask(self, statement: str, argument: str) -> str | None:
        """The one value that a statement gives, by itself a transaction."""
        with self.read() as tx:
            found: str | None = tx.exec_driver_sql(statement, (argument,)).scalar_one()
            return found

    def now(self) -> datetime:
        """The database's time."""
        with self.read() as tx:
            return now(tx)

    def close(self) -> None:
        self.engine.dispose()


def now(tx: Tx) -> datetime:
    """The database's time, as this statement sees it."""
    at: datetime = tx.execute(_NOW).scalar_one()
    return at


def true_now(store: Store) -> datetime:
    """The database's time as nobody has shifted it: for telling a wrong clock, never for deciding."""
    statement = text("SELECT clock_timestamp() AS now").columns(now=Instant())
    with store.read() as tx:
        at: datetime = tx.execute(statement).scalar_one()
    return at


def ping(store: Store) -> str:
    """What answers, in its own words. Needs no table."""
    with store.read() as tx:
        return f"Postgres {tx.execute(text('SHOW server_version')).scalar_one()}"


def connect(
    url: str,
    *,
    call_timeout_s: int = 10,
    lock_timeout_s: float | None = None,
    connections: int = 20,
    idle_s: float = IDLE_IN_TRANSACTION_S,
) -> Store:
    """A store on this database. Opens no connection yet. A statement waits for a lock no longer than `lock_timeout_s`, by default as long as a call
    may take. A transaction that stands still for `idle_s` is ended by the server."""
    # No transaction of ours spans a call to anything else, so one that is idle belongs to a process that has stopped moving; what it
    # holds is wanted by others. The server ends it long before a lock of theirs gives up.
    ms = call_timeout_s * 1000
    engine = create_engine(
        _address(url),
        pool_size=connections,
        max_overflow=5,
        pool_timeout=call_timeout_s,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": max(2, call_timeout_s // 2),
            "options": f"-c statement_timeout={ms} -c lock_timeout={int((lock_timeout_s or call_timeout_s) * 1000)} -c idle_in_transaction_session_timeout={int(idle_s * 1000)}",
            "application_name": "warmpool",
            "tcp_user_timeout": ms,
        },
    )
    return Store(engine)


def lock_reconcile(tx: Tx, profile: str) -> None:
    """Two runs that count demand and make slots for it go one after the other."""
    tx.execute(_LOCK_RECONCILE, {"k": profile})


def _address(url: str) -> URL:
    """The URL with the driver that is installed."""
    try:
        parsed = make_url(url)
    except ArgumentError as exc:
        raise PoolError(
            "database_url: cannot be parsed; it must be postgresql://USER:PASSWORD@HOST/NAME"
        ) from exc
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise PoolError(
            f"database_url: {parsed.get_backend_name()} is not supported; it must be postgresql://USER:PASSWORD@HOST/NAME"
        )
    return parsed.set(drivername="postgresql+psycopg")
