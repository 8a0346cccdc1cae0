"""The connection to the database: engine, transactions and clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import ExceptionContext

from pool.store.address import address
from pool.store.errors import is_elsewhere, translated
from pool.store.sql import Instant
from pool.store.sql import now as now_sql

Tx = Connection
IDLE_IN_TRANSACTION_S = 3.0
# Connections that a store may open beyond its number, for a moment.
OVERFLOW = 5
_NOW = select(now_sql())
_LOCK_RECONCILE = text("SELECT pg_advisory_xact_lock(hashtextextended(:k, 8))")


class Store:
    """The database of the pool. Threads may share a store; each transaction has its own connection."""

    def __init__(self, engine: Engine, *, pooled: bool = False) -> None:
        """`pooled`: its sessions are those of a pooler."""
        self.engine = engine
        self.pooled = pooled
        self._single = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._moment = engine.execution_options(isolation_level="REPEATABLE READ")

    @contextmanager
    def write(self) -> Iterator[Tx]:
        """Run the block in one transaction.

        It commits when the block ends and rolls back if the block raises.
        """
        with translated(), self.engine.begin() as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Tx]:
        """Run the block without a transaction and without locks.

        Each statement sees what was committed when it started.
        """
        with translated(), self._single.connect() as tx:
            yield tx

    @contextmanager
    def snapshot(self) -> Iterator[Tx]:
        """Run the block in a REPEATABLE READ transaction, so that all reads see the same state."""
        with translated(), self._moment.connect() as tx, tx.begin():
            yield tx

    def ask(self, statement: str, argument: str) -> str | None:
        """Run a statement as a transaction of its own and return its single value."""
        with self.read() as tx:
            found: str | None = tx.exec_driver_sql(statement, (argument,)).scalar_one()
            return found

    def now(self) -> datetime:
        """Return the database's time."""
        with self.read() as tx:
            return now(tx)

    def close(self) -> None:
        self.engine.dispose()


def now(tx: Tx) -> datetime:
    """Return the database's time."""
    at: datetime = tx.execute(_NOW).scalar_one()
    return at


def true_now(store: Store) -> datetime:
    """Return the database's time without the shift that tests may set.

    Use it to detect a wrong clock, never to decide.
    """
    statement = text("SELECT clock_timestamp() AS now").columns(now=Instant())
    with store.read() as tx:
        at: datetime = tx.execute(statement).scalar_one()
    return at


def ping(store: Store) -> str:
    """Return the name and version of the server. Needs no table."""
    with store.read() as tx:
        return f"Postgres {tx.execute(text('SHOW server_version')).scalar_one()}"


def most_connections(store: Store) -> int:
    """Return how many connections the server accepts from ordinary users."""
    with store.read() as tx:
        found = tx.execute(
            text(
                "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
            )
        )
        return int(found.scalar_one())


def connect(  # noqa: PLR0913 - one argument per limit of a connection
    url: str,
    *,
    call_timeout_s: int = 10,
    lock_timeout_s: float | None = None,
    connections: int = 20,
    overflow: int = OVERFLOW,
    idle_s: float = IDLE_IN_TRANSACTION_S,
    pooler: bool = False,
    name: str = "warmpool",
) -> Store:
    """Return a store on this database. No connection is opened yet.

    `overflow` connections are opened beyond `connections`, for a moment.
    `lock_timeout_s` limits the wait of a statement for a lock; the default is the timeout of a
    call. The server ends a transaction that is idle for `idle_s`. With a `pooler` a session may have
    another server connection for each transaction: limits are set in each transaction, and no
    statement is prepared. `name` is the sessions' application_name.
    """
    # No transaction of the pool spans a call to another system, so an idle one belongs to a process
    # that has stopped. The server ends it long before others that need its locks time out.
    limits_ms = {
        "statement_timeout": call_timeout_s * 1000,
        "lock_timeout": int((lock_timeout_s or call_timeout_s) * 1000),
        "idle_in_transaction_session_timeout": int(idle_s * 1000),
    }
    options = " ".join(f"-c {name}={ms}" for name, ms in limits_ms.items())
    engine = create_engine(
        address(url),
        pool_size=connections,
        max_overflow=overflow,
        pool_timeout=call_timeout_s,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": max(2, call_timeout_s // 2),
            "application_name": name,
            "tcp_user_timeout": call_timeout_s * 1000,
            # None: no statement is ever prepared.
            **({"prepare_threshold": None} if pooler else {"options": options}),
        },
    )
    event.listen(engine, "handle_error", _leave_a_server_that_moved)
    if pooler:
        event.listen(engine, "begin", _limits(limits_ms))
    return Store(engine, pooled=pooler)


def _leave_a_server_that_moved(context: ExceptionContext) -> None:
    """Treat a server that became a standby like one that is gone: close all connections to it."""
    if is_elsewhere(context.original_exception):
        context.is_disconnect = True


def _limits(limits_ms: Mapping[str, int]) -> Any:
    """Return a listener that sets the limits in each transaction."""
    statement = "SELECT " + ", ".join(f"set_config('{n}', '{ms}', true)" for n, ms in limits_ms.items())

    def begin(tx: Tx) -> None:
        if tx.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
            tx.exec_driver_sql(statement)

    return begin


def lock_reconcile(tx: Tx, profile: str) -> None:
    """Serialise the transactions that count demand and create slots for a profile."""
    tx.execute(_LOCK_RECONCILE, {"k": profile})
