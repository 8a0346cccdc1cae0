"""What the client raises besides `Refused`.

PoolError
├── Transient
│   ├── BrokerDown      the message could not be put on its queue
│   ├── AnswerOverdue   it was sent, and nobody answered in time
│   └── TaskFailed      the server raised instead of answering
├── ClaimLost           the claim has ended; its worker may be somebody else's by now
└── PoolClosed          this client was closed
"""

from __future__ import annotations

from pool.core.errors import PoolError, Transient


class BrokerDown(Transient):
    """Redis could not be reached; the sentence names its address without the password, and the cause."""


class AnswerOverdue(Transient):
    """No answer in time. The request was cancelled: ask again with a new request_id, or none."""


class TaskFailed(Transient):
    """The task raised; asking again with the same request_id is harmless."""


class ClaimLost(PoolError):
    """The claim has ended, for the cause that it carries. Nothing may be sent to its worker any more."""

    def __init__(self, claim_id: str, cause: str) -> None:
        super().__init__(f"claim {claim_id} has ended: {cause}")
        self.claim_id = claim_id
        self.cause = cause


class PoolClosed(PoolError):
    """`close()` was called on this pool."""

    def __init__(self) -> None:
        super().__init__("this pool was closed")
