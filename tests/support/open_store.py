"""A store whose transactions are all one that the test holds open, so that a verb stops just before
its commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pool.store import Tx, rules


class OpenStore:
    """Every write and read uses that transaction."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    @contextmanager
    def write(self) -> Iterator[Tx]:
        yield self._tx

    read = write

    def ask(self, statement: str, argument: str) -> str | None:
        return rules.Within(self._tx).ask(statement, argument)
