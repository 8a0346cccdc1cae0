"""All calls to the API server: bounded in time and rate, retried where that is safe.

Every call made here can be repeated: a repeated create answers 409, a patch applies to one version,
a deletion to one uid. So calls that were throttled, rejected by an overloaded server or cut off are
retried until the timeout of the call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from pool.core.backoff import Backoff
from pool.core.clock import Clock
from pool.core.errors import Forbidden, Refused, Transient
from pool.drivers.kubernetes import decoding
from pool.drivers.kubernetes.access import Access
from pool.drivers.kubernetes.decoding import ListPage
from pool.drivers.kubernetes.rights import AnyRight
from pool.drivers.kubernetes.throttle import Throttle

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
OK, NOT_FOUND, CONFLICT, EXPIRED = 200, 404, 409, 410

_AGAIN = Backoff(first_s=0.1, limit_s=2.0, tries=6)
_CONTENT = {"POST": JSON, "DELETE": JSON, "PATCH": "application/merge-patch+json"}
_EXPECTED = frozenset({NOT_FOUND, CONFLICT, EXPIRED})
_THROTTLED = 429
# A bookmark arrives about every minute. A watch that is silent for longer is broken.
_SILENCE_S = 90.0
_PIECE = 65_536
_PAGE = 500
_LOG_IN_AGAIN_S = 10.0
# Interval at which the authorization header is computed again. Each time, the official client
# searches its whole configuration.
_AUTHORIZE_AGAIN_S = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """The answer of the API server: a success, or an error that the caller handles."""

    status: int
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 300


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """One call: its right, object, query and body."""

    right: AnyRight
    name: str = ""
    query: Mapping[str, str | int] | None = None
    body: Mapping[str, Any] | None = None
    accept: str = JSON


class _RetryLater(Transient):
    """The call may succeed later."""

    def __init__(self, sentence: str, *, after_s: float = 0.0) -> None:
        super().__init__(sentence)
        self.after_s = after_s


class KubeApi:
    """The connection to one API server. Thread-safe."""

    def __init__(
        self,
        load: Callable[[], Access],
        *,
        throttle: Throttle,
        clock: Clock,
        call_timeout_s: float,
        called: Callable[[AnyRight, int], None] = lambda right, code: None,  # noqa: ARG005
    ) -> None:
        self._load = load
        self._access = load()
        self._loaded_at = clock.monotonic()
        self._authorized: tuple[str | None, float] = (None, -math.inf)
        self.namespace = self._access.namespace
        self._throttle = throttle
        self._clock = clock
        self._timeout_s = call_timeout_s
        # Called with every call and its status; 0 if there was no answer.
        self._called = called
        self._closed = threading.Event()
        self._granted: set[AnyRight] = set()
        # Offset of the server's clock to ours. Ages are differences between times of the server's
        # clock.
        self._ahead_s: float | None = None
        # Time of the last useful answer. A server that cannot reach its own storage answers 5xx or
        # hangs; that does not count.
        self.answered_at = -math.inf

    def call(self, call: ApiCall) -> ApiResponse:
        """Execute a call. Raise `Transient` if the result is unknown, `Refused` if repeating cannot help."""
        give_up_at = self._clock.monotonic() + self._timeout_s
        for pause in _AGAIN.pauses():
            try:
                return self._once(call, give_up_at)
            except _RetryLater as exc:
                wait_s = max(pause, exc.after_s)
                if self._clock.monotonic() + wait_s >= give_up_at or self._clock.wait(self._closed, wait_s):
                    raise
        return self._once(call, give_up_at)

    def pages(self, call: ApiCall, read: Callable[[bytes], ListPage[T]]) -> Iterator[ListPage[T]]:
        """Yield all pages of a list. Raise rather than leave one out."""
        query: dict[str, str | int] = {**(call.query or {}), "limit": _PAGE}
        while True:
            answer = self.call(replace(call, query=query))
            if not answer.ok:
                raise _unlisted(call.right, answer)
            page = read(answer.body)
            yield page
            if not page.more:
                return
            # The continue token contains the version of the list; the server rejects a request with
            # both.
            versioned = ("resourceVersion", "resourceVersionMatch")
            query = {k: v for k, v in query.items() if k not in versioned} | {"continue": page.more}

    def stream(self, call: ApiCall) -> Stream:
        """Open a watch."""
        give_up_at = self._clock.monotonic() + self._timeout_s
        self._throttle.take(give_up_at=give_up_at, stop=self._closed)
        timeout = urllib3.Timeout(connect=self._timeout_s, read=_SILENCE_S)
        response = self._request(call, timeout, stream=True)
        if response.status == OK:
            self._granted.add(call.right)
            self.answered_at = self._clock.monotonic()
            return Stream(response)
        with closing(response):
            answer = self._checked(call, response, response.read())
        raise _unlisted(call.right, answer)

    def now_s(self) -> float | None:
        """Return the time of the server's clock, to the second; None before its first answer.

        Only for display. Decisions never compare the clocks of two hosts.
        """
        return None if self._ahead_s is None else self._clock.monotonic() + self._ahead_s

    def age_s(self, created_s: float) -> float:
        """Return the seconds since a time of the server's clock."""
        if self._ahead_s is None:
            return 0.0
        return max(0.0, self._clock.monotonic() + self._ahead_s - created_s)

    def close(self) -> None:
        self._closed.set()
        self._access.http.clear()

    def _once(self, call: ApiCall, give_up_at: float) -> ApiResponse:
        self._throttle.take(give_up_at=give_up_at, stop=self._closed)
        left_s = max(0.1, give_up_at - self._clock.monotonic())
        response = self._request(call, urllib3.Timeout(total=left_s), stream=False)
        self._read_clock(response.headers.get("Date", ""))
        return self._checked(call, response, response.data)

    def _request(self, call: ApiCall, timeout: urllib3.Timeout, *, stream: bool) -> urllib3.BaseHTTPResponse:
        if self._closed.is_set():
            raise Transient("the driver was closed")
        right = call.right
        place = "" if right.of_the_cluster else f"/namespaces/{self.namespace}"
        root = f"/apis/{right.group}" if right.group else "/api/v1"
        path = "/".join(filter(None, (f"{root}{place}", right.resource, call.name)))
        url = f"{self._access.server}{path}" + (f"?{urlencode(call.query)}" if call.query else "")
        headers = {"Accept": call.accept, "User-Agent": "warmpool"}
        if authorization := self._authorization():
            headers["Authorization"] = authorization
        if right.method in _CONTENT:
            headers["Content-Type"] = _CONTENT[right.method]
        body = None if call.body is None else msgspec.json.encode(call.body)
        try:
            response = self._access.http.request(
                right.method, url, body=body, headers=headers, timeout=timeout, redirect=False,
                preload_content=not stream,
            )  # fmt: skip
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            self._called(right, 0)
            raise _RetryLater(f"the API server did not answer {right.verb} {right.resource}: {exc}") from exc
        self._called(right, response.status)
        return response

    def _authorization(self) -> str | None:
        said, at = self._authorized
        if self._clock.monotonic() - at >= _AUTHORIZE_AGAIN_S:
            said = self._access.authorization()
            self._authorized = (said, self._clock.monotonic())
        return said

    def _checked(self, call: ApiCall, response: urllib3.BaseHTTPResponse, body: bytes) -> ApiResponse:
        status, right = response.status, call.right
        if status < 500 and status != _THROTTLED:
            self.answered_at = self._clock.monotonic()
        if status < 300 or status in _EXPECTED:
            self._granted.add(right)
            return ApiResponse(status=status, body=body)
        where = "the cluster" if right.of_the_cluster else f"namespace {self.namespace}"
        said = f"{right.verb} {right.resource} in {where}: {_message(body)}"
        if status == _THROTTLED or status >= 500:
            raise _RetryLater(f"{status} to {said}", after_s=_retry_after_s(response))
        if status == 401:
            self._log_in_again()
            raise _RetryLater(f"the API server rejects our credentials: {said}")
        lacking = f'cannot {right.verb} resource "{right.resource}"' in said
        # A quota may be raised. A right that we had before will come back: a server that has just
        # started has not loaded the roles yet.
        if status == 403 and ("exceeded quota" in said or (lacking and right in self._granted)):
            raise _RetryLater(said)
        if status == 403:
            raise (Forbidden if lacking else Refused)("forbidden", detail=f"may not {said}")
        raise Refused("invalid", detail=f"{status} to {said}")

    def _log_in_again(self) -> None:
        """Load the credentials again; they may have been replaced."""
        if self._clock.monotonic() - self._loaded_at >= _LOG_IN_AGAIN_S:
            self._loaded_at = self._clock.monotonic()
            self._access = self._load()
            self._authorized = (None, -math.inf)

    def _read_clock(self, date: str) -> None:
        try:
            self._ahead_s = parsedate_to_datetime(date).timestamp() - self._clock.monotonic()
        except ValueError:
            return  # no Date header


class Expired(Transient):
    """The server does not have the version from which a watch should continue. A new list is needed."""


class Stream:
    """An open watch."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def lines(self) -> Iterator[bytes]:
        """Yield lines until the server ends the watch. Raise `Transient` if it breaks."""
        rest = b""
        while piece := self._piece():
            *whole, rest = (rest + piece).split(b"\n")
            yield from filter(None, whole)

    def shut(self) -> None:
        """End the watch from another thread."""
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            return  # it has already ended

    def close(self) -> None:
        self._response.close()

    def _piece(self) -> bytes:
        try:
            return self._response.read1(_PIECE)
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            raise Transient(f"the watch broke: {exc}") from exc


def _unlisted(right: AnyRight, answer: ApiResponse) -> Transient:
    said = f"{right.verb} {right.resource}: {_message(answer.body)}"
    return Expired(said) if answer.status == EXPIRED else Transient(said)


def _message(body: bytes) -> str:
    return decoding.status(body).message or "no reason given"


def _retry_after_s(response: urllib3.BaseHTTPResponse) -> float:
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isdigit() else 0.0
