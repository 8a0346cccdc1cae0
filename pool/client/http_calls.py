"""HTTP calls to a claimed worker: the headers that prove the claim, and a session of requests.

requests is imported by `session` only. The client does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urljoin, urlsplit

if TYPE_CHECKING:
    import requests

R = TypeVar("R")


class ClaimHeaders(dict[str, str]):
    """HTTP headers that prove a claim, for `headers=` of any HTTP client.

    requests and httpx take them as `auth=` too. requests then does not replace them with a line of
    ~/.netrc.
    """

    def __call__(self, request: R) -> R:
        """Add the headers to a request of requests or httpx."""
        headers: Any = request.headers  # type: ignore[attr-defined]
        headers.update(self)
        return request


class ClaimedWorker(Protocol):
    """A worker as seen by its holder. Both attributes raise `ClaimLost` if the claim has ended."""

    @property
    def endpoint(self) -> str: ...

    @property
    def auth(self) -> ClaimHeaders: ...


def session(holder: ClaimedWorker) -> requests.Session:
    """Return a `requests.Session` for one worker. Raise `ImportError` if requests is not installed."""
    try:
        import requests
    except ImportError as exc:
        raise ImportError(
            "worker.session() needs the package requests, which is not installed: `pip install requests`, "
            "or pass worker.endpoint and worker.auth to the HTTP client that you have",
            name="requests",
        ) from exc

    class WorkerSession(requests.Session):
        """Paths are relative to the worker's address. No other address gets the proof of the claim."""

        def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
            request.url = urljoin(f"{holder.endpoint}/", str(request.url))
            return super().prepare_request(request)

    def prove(request: requests.PreparedRequest) -> requests.PreparedRequest:
        return holder.auth(request) if _is_at(request.url, holder.endpoint) else request

    made = WorkerSession()
    made.auth = prove
    return made


def _is_at(url: str | None, endpoint: str) -> bool:
    """Return whether the URL has the scheme, host and port of the endpoint."""
    return urlsplit(url or "")[:2] == urlsplit(endpoint)[:2]
