"""The error tree. A lost race is not here: it is a value (`pool.states.Outcome`).

PoolError
├── Transient        try again: the database, Redis, the cluster or a worker did not answer
│   └── StaleView    what we know of the cluster is too old to act on
├── Refused          retrying will not help; carries a reason that callers can read
│   ├── InvalidInput names the field and what it takes
│   └── Forbidden    a right of ours is missing: it concerns everything of that kind, not one thing
├── ConfigInvalid    every wrong line of the configuration, one finding each
└── BrokenPromise    a bug: a promise was about to be broken; page someone
    └── IllegalMove  a move that the table of moves does not list
"""

from __future__ import annotations


class PoolError(Exception):
    """Anything this project raises on purpose."""


class Transient(PoolError):
    """Something did not answer; the same call may succeed later."""


class StaleView(Transient):
    """The view of the cluster is too old to destroy or make anything."""


class Refused(PoolError):
    """The answer is no, with a reason from the task contract."""

    def __init__(self, reason: str, *, detail: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s


class InvalidInput(Refused):
    """An argument is of the wrong type or out of bounds; nothing was written."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__("invalid", detail=f"{field} {sentence}")
        self.field = field


class Forbidden(Refused):
    """We lack the right itself, whatever it is used on."""


class ConfigInvalid(PoolError):
    """The configuration has wrong lines; `findings` says where and how to mend each."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = findings


class BrokenPromise(PoolError):
    """A promise was about to be broken; the database refused it."""


class IllegalMove(BrokenPromise):
    """A worker was asked to move where its state does not lead."""
