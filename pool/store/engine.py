"""The connection to the database: engines, transactions, the clock. On SQLite a transaction is BEGIN IMMEDIATE, so the
order of writers is decided at its start and a reader that turns writer never fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import QueuePool

from pool.store.errors import translated
from pool.store.sql import SQLITE_FORMAT, Instant
from pool.store.sql import now as now_sql

Tx = Connection
IDLE_IN_TRANSACTION_S = 3.0
_NOW = select(now_sql())
# Each kind of lock has names of its own.
_LOCK_PROFILE, _LOCK_RECONCILE, _LOCK_ORG = (
    text(f"SELECT pg_advisory_xact_lock(hashtextextended(:k, {seed}))") for seed in (7, 8, 9)
)
_LOCK_PROFILE_SHARED, _LOCK_ORG_SHARED = (
    text(f"SELECT pg_advisory_xact_lock_shared(hashtextextended(:k, {seed}))") for seed in (7, 9)
)


class Store:
    """The durable table of the pool. Threads may share it; each transaction has its own connection."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.is_postgres = engine.dialect.name == "postgresql"
        # SQLAlchemy's isolation levels would hand SQLite's BEGIN back to the driver, hence a word of our own there.
        levels = ("AUTOCOMMIT", "REPEATABLE READ") if self.is_postgres else ("", "")
        self._single = _mode(engine, "single", levels[0])
        self._moment = _mode(engine, "snapshot", levels[1])

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

    def ask(self, statement: str, argument: str) -> str:
        """The one value that a statement gives, by itself a transaction."""
        with self.read() as tx:
            return str(tx.exec_driver_sql(statement, (argument,)).scalar_one())

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
    statement = (
        "SELECT clock_timestamp() AS now"
        if store.is_postgres
        else f"SELECT strftime('{SQLITE_FORMAT}', 'now') AS now"
    )
    with store.read() as tx:
        at: datetime = tx.execute(text(statement).columns(now=Instant())).scalar_one()
    return at


def ping(store: Store) -> str:
    """What answers, in its own words. Needs no table."""
    with store.read() as tx:
        if store.is_postgres:
            return f"Postgres {tx.execute(text('SHOW server_version')).scalar_one()}"
        return f"SQLite {tx.execute(text('SELECT sqlite_version()')).scalar_one()}"


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
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        return Store(_sqlite(url, call_timeout_s, connections))
    return Store(_postgres(url, call_timeout_s, lock_timeout_s or call_timeout_s, connections, idle_s))


def lock_profile_shared(tx: Tx, profile: str) -> None:
    """Taken by whoever frees a worker, before he looks for waiters: frees run side by side."""
    if tx.dialect.name == "postgresql":
        tx.execute(_LOCK_PROFILE_SHARED, {"k": profile})


def lock_profile(tx: Tx, profile: str) -> None:
    """Taken by whoever is about to wait, before he looks for workers: he sees every free that came before, and every
    free that comes after sees him. Without it both could look, see nothing, and miss each other."""
    if tx.dialect.name == "postgresql":
        tx.execute(_LOCK_PROFILE, {"k": profile})


def lock_org_shared(tx: Tx, org: str) -> None:
    """Taken by whoever ends a claim that counts toward a cap: the same bargain as the profile's lock, for the slot it frees."""
    if tx.dialect.name == "postgresql":
        tx.execute(_LOCK_ORG_SHARED, {"k": org})


def lock_org(tx: Tx, org: str) -> None:
    """Taken by whoever is about to wait at his org's cap."""
    if tx.dialect.name == "postgresql":
        tx.execute(_LOCK_ORG, {"k": org})


def lock_reconcile(tx: Tx, profile: str) -> None:
    """Two runs that count demand and make slots for it go one after the other."""
    if tx.dialect.name == "postgresql":
        tx.execute(_LOCK_RECONCILE, {"k": profile})


def _postgres(
    url: str, call_timeout_s: int, lock_timeout_s: float, connections: int, idle_s: float
) -> Engine:
    # No transaction of ours spans a call to anything else, so one that is idle belongs to a process that has stopped moving; what it
    # holds is wanted by others. The server ends it long before a lock of theirs gives up.
    ms = call_timeout_s * 1000
    return create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=connections,
        max_overflow=5,
        pool_timeout=call_timeout_s,
        pool_recycle=1800,
        connect_args={
            "connect_timeout": max(2, call_timeout_s // 2),
            "options": f"-c statement_timeout={ms} -c lock_timeout={int(lock_timeout_s * 1000)} -c idle_in_transaction_session_timeout={int(idle_s * 1000)}",
            "application_name": "warmpool",
            "tcp_user_timeout": ms,
        },
    )


def _sqlite(url: str, call_timeout_s: int, connections: int) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=5,
        connect_args={"timeout": call_timeout_s, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _connected(dbapi: Any, _record: Any) -> None:
        dbapi.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
            dbapi.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begun(conn: Connection) -> None:
        begin = {"single": "", "snapshot": "BEGIN"}.get(
            conn.get_execution_options().get("mode", ""), "BEGIN IMMEDIATE"
        )
        if begin:
            conn.exec_driver_sql(begin)

    return engine


def _mode(engine: Engine, mode: str, isolation_level: str) -> Engine:
    levels = {"isolation_level": isolation_level} if isolation_level else {}
    return engine.execution_options(mode=mode, **levels)
