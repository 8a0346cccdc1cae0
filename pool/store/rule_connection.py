"""A database connection for one thread that calls the same rules all the time.

It avoids the work that SQLAlchemy does for each statement, which costs as much as the statement
itself. It is opened at first use and reopened after an error.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import DBAPIError

from pool.store.engine import Store
from pool.store.errors import is_elsewhere, translated


class RuleConnection:
    """Runs statements as `Store.ask` does. For one thread at a time."""

    def __init__(self, store: Store) -> None:
        self._engine = store.engine
        self._connection: Any = None

    def ask(self, statement: str, argument: str) -> str | None:
        """Run a statement as a transaction of its own and return its single value."""
        driver: Any = self._engine.dialect.loaded_dbapi
        with translated():
            try:
                found = self._open().execute(statement, (argument,), prepare=True).fetchone()
            except driver.Error as exc:
                if is_elsewhere(exc) or (self._connection is not None and self._connection.broken):
                    # The engine's other connections lead to the same server.
                    self._engine.dispose()
                self.close()
                raise DBAPIError.instance(
                    statement, None, exc, driver.Error, dialect=self._engine.dialect
                ) from exc
        answer: str | None = found[0]
        return answer

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> Any:
        if self._connection is None:
            pooled = self._engine.raw_connection()
            connection: Any = pooled.driver_connection
            pooled.detach()
            connection.autocommit = True
            self._connection = connection
        return self._connection
