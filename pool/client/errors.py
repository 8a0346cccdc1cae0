"""The errors of the client besides `Refused`.

PoolError
├── Transient
│   ├── BrokerDown      the message could not be published
│   ├── AnswerOverdue   the message was sent, and no answer came in time
│   └── TaskFailed      the server raised instead of answering
├── ClaimLost           the claim has ended; its worker may have another holder
└── PoolClosed          this client was closed
"""

from __future__ import annotations

from pool.core.errors import PoolError, Transient


class BrokerDown(Transient):
    """Redis cannot be reached. The message contains its address without the password, and the cause."""


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
