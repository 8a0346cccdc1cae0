"""Record the statements that a database executes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from pool.store import Store


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """Record the statements of this store's engine until the block ends."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        found.append(" ".join(statement.split()))

    event.listen(store.engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        event.remove(store.engine, "before_cursor_execute", note)
