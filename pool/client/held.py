"""`Worker` and `Workers`: what a `Pool` returns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from pool.client import http_calls
from pool.client.core import log
from pool.client.errors import PoolClosed
from pool.client.leases import HeldClaim, HeldLease
from pool.core.errors import PoolError
from pool.core.literals import ReleaseCondition, ReleaseOutcome
from pool.core.states import Condition

if TYPE_CHECKING:
    import requests

    from pool.client.blocking import Pool


class Worker(HeldClaim):
    """A claimed worker, until it is released or the server reports that the claim has ended.

    As a context manager it is released on exit, as clean even if the block raised: only the caller
    knows whether the worker can be used again. It calls `taint()` if not.
    """

    def __init__(self, pool: Pool, lease: HeldLease) -> None:
        super().__init__(lease)
        self._pool = pool

    def release(self, condition: ReleaseCondition | Condition = Condition.CLEAN) -> ReleaseOutcome:
        """Release the worker: return "released", "already_released" or "unknown_claim"."""
        return self._pool.release(self.claim_id, self._giving_back(condition))

    def session(self) -> requests.Session:
        """Return a `requests.Session` for this worker: paths are relative to its address, and each
        request proves the claim, or raises `ClaimLost` if it has ended.

        Raise `ImportError` if the package requests is not installed.
        """
        return http_calls.session(self)

    def let_go(self) -> dict[str, object]:
        """Stop renewing the claim without releasing it, and return it for `Pool.adopt`.

        JSON can carry it to another process. It contains the token. If no process adopts it, the
        claim ends with its lease.
        """
        claim = self._handing_on()
        self._pool.let_go(self.claim_id)
        return claim

    def wait_lost(self, timeout_s: float | None = None) -> bool:
        """Wait until the claim is lost. Return False if `timeout_s` passes first."""
        return cast("threading.Event", self._lease.signal).wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Do not release a claim that is lost or released already, or was inherited through a fork.
        try:
            if self._pool.holds(self.claim_id):
                self.release()
        except PoolError as trouble:
            log.warning("release_unanswered claim=%s error=%s", self.claim_id, trouble)


class Workers(tuple[Worker, ...]):
    """Workers that were acquired together. As a context manager they are released together on exit."""

    _pool: Pool

    @classmethod
    def of(cls, pool: Pool, workers: Iterable[Worker]) -> Self:
        made = cls(workers)
        made._pool = pool
        return made

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(PoolClosed):
            self._pool.release_held([worker.claim_id for worker in self])
