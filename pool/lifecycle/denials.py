"""Record calls that the API server forbids, so that `status` and the board show the verb within
seconds, whichever process made the call.
"""

from __future__ import annotations

import threading

import structlog

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.store import Store, observed_counts

log = structlog.get_logger(__name__)

# Record each verb and resource at most once per this time: many threads may try a forbidden verb.
AGAIN_AFTER_S = 5.0


class Denials:
    """Records the forbidden calls of one process.

    Thread-safe; use it outside of transactions. Does not raise if the database is unreachable.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._recorded_at: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def saw(self, verb: str, resource: str) -> None:
        """Record that the API server has forbidden this verb on this resource."""
        now = self._clock.monotonic()
        with self._lock:
            if now - self._recorded_at.get((verb, resource), float("-inf")) < AGAIN_AFTER_S:
                return
            self._recorded_at[verb, resource] = now
        log.warning("verb_forbidden", verb=verb, resource=resource)
        try:
            with self._store.write() as tx:
                observed_counts.forbidden(tx, verb, resource)
        except Transient as exc:
            log.warning("refusal_unrecorded", verb=verb, resource=resource, cause=str(exc))
