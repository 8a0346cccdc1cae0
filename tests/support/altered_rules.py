"""Alter rules of the database, for tests that prove that a part of a rule is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pool.store import Store, rules


@contextmanager
def altered(store: Store, parts: Mapping[str, str]) -> Iterator[None]:
    """Replace texts of the rules while the block runs, at every occurrence."""
    functions = [f for f in rules.functions() if "CREATE FUNCTION" in f]
    for part in parts:
        assert any(part in function for function in functions), f"no rule contains: {part}"
    touched = [function for function in functions if any(part in function for part in parts)]
    try:
        _replace(store, [_with(function, parts) for function in touched])
        yield
    finally:
        _replace(store, touched)


def _with(function: str, parts: Mapping[str, str]) -> str:
    for part, other in parts.items():
        function = function.replace(part, other)
    return function


def _replace(store: Store, functions: list[str]) -> None:
    with store.write() as tx:
        for function in functions:
            tx.exec_driver_sql(
                rules.qualified(function)
                .replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
                .replace("%", "%%")
            )
