"""Follow one kind of object: list, then watch from that version, forever. The objects go into a `Sink`.

A watch that ends is resumed from its last version. After 410, after repeated failures, and at least
every `relist_s` seconds, everything is listed again. While a watch is open and the server answers
other calls, the data is current. Otherwise it is as old as the last event.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from pool.core.backoff import Backoff
from pool.core.errors import PoolError, Refused, Transient
from pool.core.threads import Threads, WatchedThread
from pool.drivers.kubernetes import decoding
from pool.drivers.kubernetes.api import EXPIRED, JSON, ApiCall, Expired, KubeApi, Stream
from pool.drivers.kubernetes.decoding import ListPage
from pool.drivers.kubernetes.pulse import EVERY_S
from pool.drivers.kubernetes.rights import Right

log = structlog.get_logger(__name__)

T = TypeVar("T")
_AGAIN = Backoff(first_s=0.2, limit_s=10.0, tries=2)
# A missing right may be granted later, and a server that has just started has not loaded the roles
# yet.
_REFUSED = Backoff(first_s=0.5, limit_s=60.0, tries=2)
# Number of consecutive failures to resume, after which everything is listed again.
_RESUMES = 3
# Events missed while a watch was broken arrive as soon as it is resumed. After this time without
# one, there were none.
_CAUGHT_UP_S = 1.0
# A server that has answered no call for this time counts as down, even if a watch is open. `pulse`
# makes calls more often than that.
_SILENT_SERVER_S = 2 * EVERY_S
# No watch is opened for a shorter time than this.
_SHORTEST_S = 2.0
_FROM_CACHE: Mapping[str, str | int] = {"resourceVersion": "0"}
_CONSISTENTLY: Mapping[str, str | int] = {}


class Sink(Protocol[T]):
    """Where objects and changes go. Called by one thread."""

    def replace(self, items: list[T]) -> None:
        """Replace all objects."""

    def put(self, item: T) -> None:
        """Add or update one object."""

    def drop(self, item: T) -> None:
        """Remove one object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSource(Generic[T]):
    """The kind of object to follow: its rights and its decoders."""

    list_right: Right
    watch_right: Right
    page: Callable[[bytes], ListPage[T]]
    one: Callable[[msgspec.Raw], T]
    query: Mapping[str, str | int]
    accept_list: str = JSON
    accept: str = JSON


class Follower(Generic[T]):
    """A thread that follows one kind of object, from `start` to `close`."""

    def __init__(
        self, api: KubeApi, source: WatchSource[T], sink: Sink[T], *, threads: Threads, relist_s: float
    ) -> None:
        self._api = api
        self._source = source
        self._sink = sink
        self._threads = threads
        self._clock = threads.clock
        self._relist_s = relist_s
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: WatchedThread | None = None
        self._stream: Stream | None = None
        self._version = ""
        self._fill_from: Mapping[str, str | int] = _FROM_CACHE
        self._failures = 0
        self._filled_at = -math.inf
        self._heard_at = -math.inf
        self._open_since = math.inf
        self._last_error = ""

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                name = f"following {self._source.list_right.resource}"
                self._thread = self._threads.start(name, self._run, stop=self._stop)

    def age_s(self) -> float:
        """Return the age of the data; infinite before the first list.

        While a watch is open and the server answers other calls, silence means that nothing has
        changed.
        """
        now = self._clock.monotonic()
        if self._heard_at > -math.inf and now - self._open_since >= _CAUGHT_UP_S:
            mute_s = now - max(self._heard_at, self._api.answered_at)
            return mute_s if mute_s > _SILENT_SERVER_S else 0.0
        return now - self._heard_at

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stop.set()
        with self._lock:
            if self._stream is not None:
                self._stream.shut()
        if self._thread is not None:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except Refused as exc:
                self._failed("following_refused", exc, _REFUSED)
            except Transient as exc:
                self._failed("following_interrupted", exc, _AGAIN)

    def _follow(self) -> None:
        """List if there is no version to resume from, then watch until the next list is due."""
        if not self._version:
            self._fill()
        until = self._filled_at + self._relist_s
        while not self._stop.is_set() and (left_s := until - self._clock.monotonic()) >= _SHORTEST_S:
            self._watch(int(left_s))
        self._fill_from = {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        self._version = ""

    def _fill(self) -> None:
        """List from the server's cache, which is cheap for the server, but not older than the known
        version.

        After repeated failures, list consistently.
        """
        call = ApiCall(
            right=self._source.list_right,
            query={**self._source.query, **self._fill_from},
            accept=self._source.accept_list,
        )
        began = self._clock.monotonic()
        pages = list(self._api.pages(call, self._source.page))
        self._sink.replace([item for page in pages for item in page.items])
        self._version = pages[-1].version
        self._filled_at = self._heard_at = began

    def _watch(self, seconds: int) -> None:
        query: dict[str, str | int] = {
            **self._source.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": seconds,
        }
        call = ApiCall(right=self._source.watch_right, query=query, accept=self._source.accept)
        began = self._clock.monotonic()
        with closing(self._api.stream(call)) as stream, self._opened(stream):
            for line in stream.lines():
                self._take_or_leave(line)
                self._heard_at = self._clock.monotonic()
        if self._stop.is_set():
            return
        # The server itself ended the watch, so everything up to now was received. It also ends a
        # watch of a client that is too slow.
        now = self._clock.monotonic()
        if self._heard_at < began and now - began < _SHORTEST_S / 2:
            raise Transient("the watch ended as soon as it was open")
        self._heard_at = now

    @contextmanager
    def _opened(self, stream: Stream) -> Iterator[None]:
        """Let `close` end the stream while inside."""
        with self._lock:
            self._stream = stream
            if self._stop.is_set():
                stream.shut()
        self._open_since = self._clock.monotonic()
        try:
            yield
        finally:
            if self._clock.monotonic() - self._open_since >= _CAUGHT_UP_S:
                self._failures, self._last_error = 0, ""
            self._open_since = math.inf
            with self._lock:
                self._stream = None

    def _failed(self, event: str, exc: PoolError, pauses: Backoff) -> None:
        """Log the failure, once per cause, and wait."""
        if self._stop.is_set():
            return
        self._failures += 1
        if str(exc) != self._last_error:
            self._last_error = str(exc)
            log.warning(event, resource=self._source.list_right.resource, cause=self._last_error)
        if isinstance(exc, Expired) or (isinstance(exc, Transient) and self._failures % _RESUMES == 0):
            self._fill_from, self._version = _CONSISTENTLY, ""
        jitter = next(pauses.pauses()) / pauses.first_s
        self._clock.wait(self._stop, jitter * pauses.nominal(self._failures))

    def _take_or_leave(self, line: bytes) -> None:
        """Process one event. Skip one that cannot be decoded; the next list contains its object."""
        try:
            self._take(line)
        except PoolError:
            raise
        except Exception as exc:  # noqa: BLE001 - later events are about other objects
            resource = self._source.list_right.resource
            log.error("watch_event_unreadable", resource=resource, cause=repr(exc)[:300])  # noqa: TRY400

    def _take(self, line: bytes) -> None:
        event = decoding.event(line)
        match event.type:
            case "BOOKMARK":
                self._version = decoding.meta(event.object).resource_version
                return
            case "ERROR":
                status = decoding.status(event.object)
                if status.code == EXPIRED:
                    raise Expired(status.message)
                raise Transient(f"the watch ended: {status.message}")
            case "DELETED":
                self._sink.drop(self._source.one(event.object))
            case _:
                self._sink.put(self._source.one(event.object))
        self._version = decoding.meta(event.object).resource_version
