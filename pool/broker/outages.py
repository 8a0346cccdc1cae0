"""Which refusals of a Redis server are an outage: it will take the command again later, after it has loaded its data, freed memory, or been
replaced by another server. Everything else that it refuses is an error of the command."""

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
# How Redis 6.2 tells that a command inside a script was refused.
_IN_A_SCRIPT = ("-READONLY", "-OOM", "-MISCONF", "-NOREPLICAS", "-LOADING", "-MASTERDOWN")


def is_outage(exc: ResponseError) -> bool:
    """Whether the same command may be taken later."""
    text = str(exc)
    return isinstance(exc, _CLASSES) or text.startswith(_CODES) or any(code in text for code in _IN_A_SCRIPT)
