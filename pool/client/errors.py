"""The errors of the client besides `Refused`.

PoolError
├── Transient
│   ├── BrokerDown      an outage: the message could not be published
│   ├── AnswerOverdue   the message was sent, and no answer came in time
│   └── TaskFailed      the server raised instead of answering
├── BrokerDenied        Redis refused the credentials; retrying does not help
├── Refused
│   └── InvalidUrl      the URL is malformed, or names a server that cannot be the broker
├── ClaimLost           the claim has ended; its worker may have another holder
└── PoolClosed          this client was closed
"""

from __future__ import annotations

from pool.core.brokerurl import InvalidUrl
from pool.core.errors import PoolError, Transient

__all__ = [
    "LINK_ERRORS",
    "AnswerOverdue",
    "BrokerDenied",
    "BrokerDown",
    "ClaimLost",
    "InvalidUrl",
    "PoolClosed",
    "TaskFailed",
]


class BrokerDown(Transient):
    """Redis cannot be reached. The message contains its address without the password, and the cause."""


class BrokerDenied(PoolError):
    """Redis refused the user, the password, or a command that this user may not use."""


# What the connections raise. Only the first is worth a retry.
LINK_ERRORS = (BrokerDown, BrokerDenied, InvalidUrl)


class AnswerOverdue(Transient):
    """No answer in time. The request was cancelled: acquire again with a new request_id or without one."""


class TaskFailed(Transient):
    """The task raised. Repeating it with the same request_id is harmless."""


class ClaimLost(PoolError):
    """The claim has ended; `cause` is why. The holder must not use its worker any more."""

    def __init__(self, claim_id: str, cause: str) -> None:
        super().__init__(f"claim {claim_id} has ended: {cause}")
        self.claim_id = claim_id
        self.cause = cause


class PoolClosed(PoolError):
    """The pool was closed with `close()`."""

    def __init__(self) -> None:
        super().__init__("this pool was closed")
