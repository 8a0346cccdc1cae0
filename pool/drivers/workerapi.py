"""What the pool asks of workers over HTTP: activation and probes. Never retried: the caller decides what a failure means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pool.core.clock import Clock
from pool.core.errors import Refused, Transient
from pool.drivers import boundedhttp
from pool.drivers.boundedhttp import HttpCall


class HttpWorkerApi:
    """Each call is a connection of its own, bounded in time and bytes (`pool.drivers.boundedhttp`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        """POST the configuration as JSON."""
        told = {"Content-Type": "application/json", **headers}
        call = HttpCall(method="POST", url=url, headers=told, body=json.dumps(body).encode())
        reply = boundedhttp.fetch(call, timeout_s=timeout_s, clock=self._clock)
        if not reply.ok:
            said = reply.body[:200].decode(errors="replace")
            raise Refused("activation_failed", detail=f"the worker answered {reply.status}: {said}")

    def healthy(self, url: str, timeout_s: float) -> bool:
        """Whether a GET answers 2xx. Of the answer only its status counts."""
        try:
            status = boundedhttp.status(
                HttpCall(method="GET", url=url), timeout_s=timeout_s, clock=self._clock
            )
        except Transient:
            return False
        return 200 <= status < 300
