"""Wait until a condition holds, with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T | None], *, within_s: float = 10.0, every_s: float = 0.02) -> T:
    """Return the first truthy value of `check`; raise an AssertionError with the last value if
    there is none.
    """
    end = time.monotonic() + within_s
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {within_s} s: {check} gave {value!r}")
        time.sleep(every_s)
