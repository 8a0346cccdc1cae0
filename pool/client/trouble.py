"""Failures of the connections: which error a caller gets, and one log line per outage.

The first failure is logged, and the end of the outage; what fails in between is not.
"""

from __future__ import annotations

import logging
import threading

from pool.client.errors import BrokerDenied, BrokerDown, InvalidUrl
from pool.core.brokerurl import NO_CLUSTER, redacted
from pool.core.clock import Clock

log = logging.getLogger("warmpool.client")

_WHERE = "the URL (`url` of Pool, `broker_url` of the configuration)"


class Troubles:
    """The failures of one client. Any thread may report them."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._url = url
        self._where = redacted(url)
        self._clock = clock
        self._lock = threading.Lock()
        # What fails, and since when.
        self._failing: set[str] = set()
        self._since = 0.0

    def of(self, doing: str, exc: Exception) -> BrokerDown | BrokerDenied | InvalidUrl:
        """Record that this failed, and return the error for the caller."""
        error = self._error(doing, exc)
        with self._lock:
            first = not self._failing
            self._failing.add(doing)
            if first:
                self._since = self._clock.monotonic()
        if first:
            log.warning("broker_away error=%s", error)
        return error

    def over(self, doing: str) -> None:
        """Record that this works. The outage is over when nothing fails any more."""
        if doing not in self._failing:
            return
        with self._lock:
            self._failing.discard(doing)
            if self._failing:
                return
        log.warning("broker_back after_s=%.1f", self._clock.monotonic() - self._since)

    def _error(self, doing: str, exc: Exception) -> BrokerDown | BrokerDenied | InvalidUrl:
        from pool.broker.outages import Trouble, trouble

        match trouble(exc):
            case Trouble.CREDENTIALS:
                return BrokerDenied(
                    f"{self._where} refused the credentials: {exc}; check user and password in {_WHERE}"
                )
            case Trouble.RIGHTS:
                return BrokerDenied(
                    f"cannot {doing} {self._where}: the Redis user in {_WHERE} lacks a right: {exc}; "
                    "`warmpool org acl` prints the rights of a client"
                )
            case Trouble.CLUSTER:
                return InvalidUrl(self._url, f"{NO_CLUSTER} ({exc})")
            case Trouble.DATABASE:
                return InvalidUrl(self._url, f"a URL whose number of the database the server has ({exc})")
            case Trouble.MASTER:
                return InvalidUrl(self._url, f"a URL with the name of a monitored primary: {exc}")
            case _:
                # A timeout has no message of its own.
                return BrokerDown(f"cannot {doing} {self._where}: {str(exc) or 'it did not answer in time'}")
