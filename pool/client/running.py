"""When a function is run again on another worker: only if its claim was lost, and only if that is safe. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from pool.client.calls import PendingCall, renew
from pool.client.errors import ClaimLost
from pool.client.leases import HeldClaim
from pool.core.errors import InvalidInput

ATTEMPTS = 3
# The pool learns of a dead pod within seconds. A broken connection may be the first sign of it.
_LOOK_EVERY_S = 0.5
_LOOKS = 10
_PATIENCE_S = 2.0


def attempts_of(attempts: object, *, idempotent: bool) -> int:
    """Return how often a function may run."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise InvalidInput("attempts", f"must be a whole number, at least 1, got {attempts!r}")
    return attempts if idempotent else 1


def looks(error: Exception, claim: HeldClaim, *, may_run_again: bool) -> Iterator[float]:
    """Yield the pause before each time that the server is queried whether the claim has ended."""
    if claim.lost or not may_run_again:
        return
    yield 0.0
    if _is_broken_connection(error):
        yield from repeat(_LOOK_EVERY_S, _LOOKS)


def question(claim: HeldClaim) -> PendingCall:
    """Return the call that shows whether the claim has ended."""
    return renew([claim.claim_id], patience_s=_PATIENCE_S)


def loss(claim: HeldClaim, error: Exception) -> ClaimLost:
    """Return the error of a run whose claim was lost: its own if that is a `ClaimLost` of this claim."""
    if isinstance(error, ClaimLost) and error.claim_id == claim.claim_id:
        return error
    lost = ClaimLost(claim.claim_id, claim.cause or "")
    lost.__cause__ = error
    return lost


def _is_broken_connection(error: BaseException | None) -> bool:
    """Return whether the error, or one that led to it, is an error of the network."""
    for _ in range(_LOOKS):
        if error is None or isinstance(error, OSError):
            return error is not None
        error = error.__cause__ or error.__context__
    return False
