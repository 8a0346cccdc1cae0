"""What the API server forbids is told to the table, so that `status` and the board name the verb within seconds, whichever process met it."""

from __future__ import annotations

import threading

import structlog

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.store import Store, observed_counts

log = structlog.get_logger(__name__)

# Each is told again only after this: a verb that is missing may be tried by many threads.
AGAIN_AFTER_S = 5.0


class Denials:
    """One process's refusals. Safe to use from many threads, outside of any transaction; never raises for a database that is away."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._told: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def saw(self, verb: str, resource: str) -> None:
        """The API server said that we may not."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._told.get((verb, resource), float("-inf")) < AGAIN_AFTER_S:
                return
            self._told[verb, resource] = now
        log.warning("verb_forbidden", verb=verb, resource=resource)
        try:
            with self._store.write() as tx:
                observed_counts.forbidden(tx, verb, resource)
        except Transient as exc:
            log.warning("refusal_untold", verb=verb, resource=resource, cause=str(exc))
