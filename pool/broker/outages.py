"""Which errors of a Redis server are an outage: it accepts the same command later, after it has
loaded its data, freed memory, or been replaced. All other errors are caused by the command, by the
credentials, or by a URL that names the wrong server.
"""

from __future__ import annotations

from enum import StrEnum

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.sentinel import MasterNotFoundError

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
# Redis has no code for these.
_NO_SUCH_DATABASE = ("DB index is out of range", "invalid DB index")


class Trouble(StrEnum):
    """Why a command failed, as far as the caller can act on it."""

    OUTAGE = "outage"
    CREDENTIALS = "credentials"
    RIGHTS = "rights"
    CLUSTER = "cluster"
    DATABASE = "database"
    MASTER = "master"


class MasterUnknown(MasterNotFoundError):
    """All sentinels answered, and none monitors a primary of that name."""


_TROUBLES: tuple[tuple[Trouble, tuple[type[Exception], ...]], ...] = (
    (
        Trouble.CREDENTIALS,
        (AuthenticationError, AuthorizationError, AuthenticationWrongNumberOfArgsError),
    ),
    (Trouble.RIGHTS, (NoPermissionError,)),
    (Trouble.CLUSTER, (AskError, ClusterCrossSlotError)),
    (Trouble.MASTER, (MasterUnknown,)),
)


def trouble(exc: Exception) -> Trouble:
    """Return the kind of an error. What no retry can change is not an outage."""
    for kind, classes in _TROUBLES:
        if isinstance(exc, classes):
            return kind
    if isinstance(exc, ResponseError) and any(text in str(exc) for text in _NO_SUCH_DATABASE):
        return Trouble.DATABASE
    return Trouble.OUTAGE


def is_outage(exc: Exception) -> bool:
    """Return whether the server may accept the same command later."""
    text = str(exc)
    return isinstance(exc, _CLASSES) or text.startswith(_CODES) or any(code in text for code in _IN_A_SCRIPT)
