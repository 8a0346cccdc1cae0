"""A wrong clock for one Python process: put this folder on PYTHONPATH and set CLOCK_SKEW_S. The
time of day is off by that many seconds; monotonic time is right, as on a real host.
"""

from __future__ import annotations

import datetime as dt
import os
import time
from datetime import datetime as _datetime
from typing import Any

SKEW_S = float(os.environ.get("CLOCK_SKEW_S", "0"))

_time, _time_ns = time.time, time.time_ns


class _Kind(type):
    """Datetimes created by others are datetimes too."""

    def __instancecheck__(cls, thing: object) -> bool:
        return isinstance(thing, _datetime)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _datetime)


class Datetime(_datetime, metaclass=_Kind):
    __slots__ = ()

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return _datetime.fromtimestamp(_time() + SKEW_S, tz)

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.fromtimestamp(_time() + SKEW_S, dt.UTC).replace(tzinfo=None)


time.time = lambda: _time() + SKEW_S
time.time_ns = lambda: _time_ns() + int(SKEW_S * 1e9)
dt.datetime = Datetime  # type: ignore[misc]
