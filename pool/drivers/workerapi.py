"""HTTP calls to workers: activation and probes. Never retried: the caller decides what a failure means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pool.core.clock import Clock
from pool.core.errors import Refused, Transient
from pool.drivers import boundedhttp
from pool.drivers.boundedhttp import HttpCall


class HttpWorkerApi:
    """Each call uses its own connection, bounded in time and bytes (`pool.drivers.boundedhttp`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        """POST the configuration as JSON."""
        all_headers = {"Content-Type": "application/json", **headers}
        call = HttpCall(method="POST", url=url, headers=all_headers, body=json.dumps(body).encode())
        reply = boundedhttp.fetch(call, timeout_s=timeout_s, clock=self._clock)
        if not reply.ok:
            text = reply.body[:200].decode(errors="replace")
            raise Refused("activation_failed", detail=f"the worker answered {reply.status}: {text}")

    def healthy(self, url: str, timeout_s: float) -> bool:
        """Return whether a GET answers 2xx. The body is not read."""
        try:
            status = boundedhttp.status(
                HttpCall(method="GET", url=url), timeout_s=timeout_s, clock=self._clock
            )
        except Transient:
            return False
        return 200 <= status < 300
