"""The error tree. A lost race is not an error but a value (`pool.core.states.Outcome`).

PoolError
├── Transient        retry: the database, Redis, the cluster or a worker did not answer
│   └── StaleView    the pod list is too old to act on
├── Refused          a retry will not help; carries a reason for the caller
│   ├── InvalidInput names the invalid field and what is allowed
│   └── Forbidden    the pool lacks a permission, so every call of that kind fails
├── ConfigInvalid    all problems of the configuration, one finding each
└── BrokenPromise    a bug: an invariant was violated; page someone
    └── IllegalMove  a move that is not in the table of moves
"""

from __future__ import annotations

from typing import cast

from pool.core.literals import RefusalReason


class PoolError(Exception):
    """Base of all errors that this project raises."""


class Transient(PoolError):
    """A dependency did not answer; the same call may succeed later."""


class StaleView(Transient):
    """The pod list is too old to delete or create pods."""


class Refused(PoolError):
    """The call is refused, with a reason from the task contract."""

    def __init__(self, reason: str, *, detail: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = cast("RefusalReason", reason)
        self.detail = detail
        self.retry_after_s = retry_after_s


class InvalidInput(Refused):
    """An argument has the wrong type or is out of bounds; nothing was written."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__("invalid", detail=f"{field} {sentence}")
        self.field = field


class Forbidden(Refused):
    """The pool lacks the permission, whatever the object."""


class ConfigInvalid(PoolError):
    """The configuration is invalid; each finding names the place and what is allowed."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = findings


class BrokenPromise(PoolError):
    """An invariant would have been violated, and the database refused the write."""


class IllegalMove(BrokenPromise):
    """A worker's state does not allow the requested move."""
