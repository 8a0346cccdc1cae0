"""Remove a part of a database rule in the test's own database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pool.store import Store, rules


@contextmanager
def broken_rule(store: Store, rule: str, was: str, becomes: str) -> Iterator[None]:
    """Replace one text of a rule, which must occur exactly once, until the block ends."""
    with store.read() as tx:
        name = rules.qualified(f"warmpool_{rule}")
        sound = str(tx.exec_driver_sql(f"SELECT pg_get_functiondef('{name}'::regproc)").scalar_one())
    assert sound.count(was) == 1, sound
    _write(store, sound.replace(was, becomes))
    try:
        yield
    finally:
        _write(store, sound)


def _write(store: Store, definition: str) -> None:
    with store.write() as tx:
        tx.exec_driver_sql(definition.replace("%", "%%"))
