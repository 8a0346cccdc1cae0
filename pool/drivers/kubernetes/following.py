"""Follow one kind of object: list, then watch from there, for ever. What is told goes into a `Sink`.

A watch that ends is taken up where it was; after 410, or when that keeps failing, everything is listed again, and so it is every
few minutes, whatever the watch says. While a connection is open, and the server answers anybody, what was told is now; otherwise it is as old
as the last word.
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
# A right that is missing may be given, and a server that has just started knows nobody's rights.
_REFUSED = Backoff(first_s=0.5, limit_s=60.0, tries=2)
# Taking up an old version has failed so often that a list is worth its price.
_RESUMES = 3
# What happened while a watch was broken comes at once when it is taken up; after so long a silence there was nothing.
_CAUGHT_UP_S = 1.0
# A server that has said nothing to anybody for so long is not there, whatever is open; somebody asks more often (`pulse`).
_MUTE_S = 2 * EVERY_S
# No watch is asked to be shorter.
_SHORTEST_S = 2.0
_FROM_CACHE: Mapping[str, str | int] = {"resourceVersion": "0"}
_CONSISTENTLY: Mapping[str, str | int] = {}


class Sink(Protocol[T]):
    """Where what is told goes. Called by one thread."""

    def replace(self, items: list[T]) -> None:
        """All there is."""

    def put(self, item: T) -> None:
        """One is new or has changed."""

    def drop(self, item: T) -> None:
        """One is no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSource(Generic[T]):
    """What is followed, by which rights, and how it is read."""

    list_right: Right
    watch_right: Right
    page: Callable[[bytes], ListPage[T]]
    one: Callable[[msgspec.Raw], T]
    query: Mapping[str, str | int]
    accept_list: str = JSON
    accept: str = JSON


class Follower(Generic[T]):
    """A thread of its own from `start` to `close`."""

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
        self._said = ""

    def start(self) -> None:
        """Begin, if that was not done before."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                name = f"following {self._source.list_right.resource}"
                self._thread = self._threads.start(name, self._run, stop=self._stop)

    def age_s(self) -> float:
        """How old the last word is; infinite before the first list. On an open watch silence means that nothing has happened, as
        long as the server answers others."""
        now = self._clock.monotonic()
        if self._heard_at > -math.inf and now - self._open_since >= _CAUGHT_UP_S:
            mute_s = now - max(self._heard_at, self._api.answered_at)
            return mute_s if mute_s > _MUTE_S else 0.0
        return now - self._heard_at

    def close(self) -> None:
        """Stop, and wait for it."""
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
        """A fill, unless there is something to go on from; then watches until it is time for the next."""
        if not self._version:
            self._fill()
        until = self._filled_at + self._relist_s
        while not self._stop.is_set() and (left_s := until - self._clock.monotonic()) >= _SHORTEST_S:
            self._watch(int(left_s))
        self._fill_from = {"resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        self._version = ""

    def _fill(self) -> None:
        """From the server's cache, which costs it little, and never older than what we know already; consistently where
        that was of no avail."""
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
        # Ended by the server itself: up to now it would have told us everything. It does so, too, when we are too slow for it.
        now = self._clock.monotonic()
        if self._heard_at < began and now - began < _SHORTEST_S / 2:
            raise Transient("the watch ended as soon as it was open")
        self._heard_at = now

    @contextmanager
    def _opened(self, stream: Stream) -> Iterator[None]:
        """While inside, `close` ends the stream."""
        with self._lock:
            self._stream = stream
            if self._stop.is_set():
                stream.shut()
        self._open_since = self._clock.monotonic()
        try:
            yield
        finally:
            if self._clock.monotonic() - self._open_since >= _CAUGHT_UP_S:
                self._failures, self._said = 0, ""
            self._open_since = math.inf
            with self._lock:
                self._stream = None

    def _failed(self, event: str, exc: PoolError, pauses: Backoff) -> None:
        """Say so, once for each cause, and wait a little."""
        if self._stop.is_set():
            return
        self._failures += 1
        if str(exc) != self._said:
            self._said = str(exc)
            log.warning(event, resource=self._source.list_right.resource, cause=self._said)
        if isinstance(exc, Expired) or (isinstance(exc, Transient) and self._failures % _RESUMES == 0):
            self._fill_from, self._version = _CONSISTENTLY, ""
        jitter = next(pauses.pauses()) / pauses.first_s
        self._clock.wait(self._stop, jitter * pauses.nominal(self._failures))

    def _take_or_leave(self, line: bytes) -> None:
        """One event that cannot be read is left out; the next list has what it was about."""
        try:
            self._take(line)
        except PoolError:
            raise
        except Exception as exc:  # noqa: BLE001 - the events behind it are about other objects
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
