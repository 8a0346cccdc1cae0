"""Waiting for something to become true, bounded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T | None], *, within_s: float = 10.0, every_s: float = 0.02) -> T:
    """The first truthy value of `check`; an AssertionError with the last value if it stays falsy."""
    end = time.monotonic() + within_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s} s: {check} gave {value!r}")
        time.sleep(every_s)
