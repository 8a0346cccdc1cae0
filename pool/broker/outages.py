"""Which errors of a Redis server are an outage: it accepts the same command later, after it has
loaded its data, freed memory, or been replaced. All other errors are caused by the command.
"""

from __future__ import annotations

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

_CLASSES = (
    BusyLoadingError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    TryAgainError,
)
# Codes that redis-py has no class for.
_CODES = ("MISCONF ", "NOREPLICAS ", "UNBLOCKED ", "BUSY ", "NOMASTERLINK ", "FAILOVER ")
# How Redis 6.2 reports that a command inside a script was refused.
_IN_A_SCRIPT = ("-READONLY", "-OOM", "-MISCONF", "-NOREPLICAS", "-LOADING", "-MASTERDOWN")


def is_outage(exc: ResponseError) -> bool:
    """Return whether the server may accept the same command later."""
    text = str(exc)
    return isinstance(exc, _CLASSES) or text.startswith(_CODES) or any(code in text for code in _IN_A_SCRIPT)
