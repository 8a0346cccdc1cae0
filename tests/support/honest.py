"""Honest callers of one org during an attack. Records how long each call took and every call that
failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from celery import Celery

from pool.client import Pool, calls
from pool.core.errors import PoolError
from pool.core.signing import OrgKey
from tests.support.signed import recipe
from tests.support.waiting import eventually

T = TypeVar("T")

PATIENCE_S = 60.0
# An answer that takes longer than this counts as lost.
ANSWERED_WITHIN_S = 15.0
ACQUIRE_WAIT_S = 20


class Honest:
    """Threads that acquire, renew and release through one client, and one that does so with its own
    Celery app.
    """

    def __init__(
        self,
        url: str,
        *,
        org: str,
        key: OrgKey | None,
        threads: int = 16,
        plain: int = 1,
        pause_s: float = 0.0,
    ) -> None:
        """`pause_s` is the time between two rounds of one caller."""
        self.org = org
        self.pool = Pool(
            url, name=org, org_key=None if key is None else key.text, answer_grace_s=ANSWERED_WITHIN_S
        )
        self.held: dict[str, None] = {}
        self._plain = Plain(url, org, key)
        self._pause_s = pause_s
        self._took: list[tuple[str, float]] = []
        self._troubles: list[str] = []
        self._stop = threading.Event()
        loops = [self._through_the_client] * threads + [self._through_celery] * plain
        self._threads = [threading.Thread(target=self._run, args=(loop,), daemon=True) for loop in loops]

    @property
    def address(self) -> str:
        """The reply list of the client."""
        return self.pool._session().core.identity.reply_to

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.pool.close()
        self._plain.close()

    def goes_on(self, count: int = 200) -> list[tuple[str, float]]:
        """Wait for `count` more calls or a failure; return them with their durations."""
        first = len(self._took)
        eventually(lambda: len(self._took) - first >= count or self._troubles, within_s=PATIENCE_S)
        return self.since(first)

    def mark(self) -> int:
        return len(self._took)

    def since(self, mark: int) -> list[tuple[str, float]]:
        return self._took[mark:]

    def complaints(self) -> list[str]:
        """Calls that were refused, failed or never answered, and threads that ended."""
        ended = [thread.name for thread in self._threads if not thread.is_alive() and not self._stop.is_set()]
        return self._troubles + [f"{name} has ended" for name in ended]

    def _run(self, loop: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                loop()
            except Exception as exc:  # noqa: BLE001 - whatever it is, an honest caller was harmed
                self._troubles.append(f"{loop.__name__}: {type(exc).__name__}: {exc}")
            self._stop.wait(self._pause_s)

    def _through_the_client(self) -> None:
        worker = self._timed("acquire", lambda: self.pool.acquire(self.org, wait_s=ACQUIRE_WAIT_S))
        self.held[worker.claim_id] = None
        try:
            self._timed("renew", lambda: self._renewed(worker.claim_id))
        finally:
            self._timed("release", worker.release)
            self.held.pop(worker.claim_id)

    def _renewed(self, claim_id: str) -> None:
        call = calls.renew([claim_id], patience_s=calls.BRIEF_S)
        found = self.pool._session().call(call, calls.renewal)
        if claim_id not in found.renewed:
            raise PoolError(f"claim {claim_id} was lost: {found.gone}")

    def _through_celery(self) -> None:
        granted = self._timed(
            "plain acquire", lambda: self._plain.call("acquire", org=self.org, wait_s=ACQUIRE_WAIT_S)
        )
        if granted.get("outcome") != "granted":
            raise PoolError(f"the plain caller was refused: {granted}")
        released = self._timed(
            "plain release", lambda: self._plain.call("release", claim_id=granted["claim_id"])
        )
        if released != {"outcome": "released"}:
            raise PoolError(f"the plain caller's release: {released}")

    def _timed(self, what: str, call: Callable[[], T]) -> T:
        began = time.monotonic()
        done = call()
        self._took.append((what, time.monotonic() - began))
        return done


class Plain:
    """A service with its own Celery app; with a key it signs as the documentation shows."""

    def __init__(self, url: str, org: str, key: OrgKey | None) -> None:
        self.app = Celery(f"{org}-service", broker=url, backend=url, set_as_current=False)
        self._key = key
        self._signing: dict[str, Any] = {}
        if key is not None:
            exec(recipe(), self._signing)

    def call(self, task: str, **kwargs: Any) -> dict[str, Any]:
        if self._key is None:
            sent: Any = self.app.send_task(f"pool.{task}", kwargs=kwargs, queue="acquire")
        else:
            sent = self._signing["ask"](self.app, self._key.text, f"pool.{task}", **kwargs)
        try:
            return dict(sent.get(timeout=ANSWERED_WITHIN_S))
        finally:
            # Otherwise it connects to the broker when it is garbage-collected, long after the
            # broker has ended.
            sent.backend.remove_pending_result(sent)
            sent.backend = None

    def close(self) -> None:
        self.app.close()


def worst(took: list[tuple[str, float]]) -> float:
    return max((seconds for _, seconds in took), default=0.0)
