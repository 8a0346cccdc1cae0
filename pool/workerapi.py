"""HTTP to workers: activation and probes. Bounded, never redirected, never retried: the caller decides what a failure means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import urllib3

from pool.errors import Refused, Transient


class HttpWorkerApi:
    """One pool of connections to all workers."""

    def __init__(self) -> None:
        self._http = urllib3.PoolManager(num_pools=200, maxsize=4, retries=False)

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        """POST the configuration as JSON."""
        answer = self._request("POST", url, timeout_s, json=body, headers=dict(headers))
        if answer.status >= 300:
            said = answer.data[:200].decode(errors="replace")
            raise Refused("activation_failed", detail=f"the worker answered {answer.status}: {said}")

    def healthy(self, url: str, timeout_s: float) -> bool:
        """Whether a GET answers 2xx."""
        try:
            return 200 <= self._request("GET", url, timeout_s).status < 300
        except Transient:
            return False

    def _request(self, method: str, url: str, timeout_s: float, **more: Any) -> urllib3.BaseHTTPResponse:
        try:
            return self._http.request(
                method, url, timeout=urllib3.Timeout(total=timeout_s), redirect=False, **more
            )
        except urllib3.exceptions.HTTPError as exc:
            raise Transient(f"the worker at {url} did not answer: {exc}") from exc
