"""Redis locks, for not doing the same work twice. They are only locks: nothing is correct because of them.

One key per lock: `warmpool.lock.<name>` holds the token of one run and expires by itself. Renewing and releasing compare
the token, so a run that lost its lock can neither prolong nor free its successor's. `warmpool.kept` stays for ever: who takes a lock
and does not find it knows that everything else is gone, too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from redis import Redis
from redis.exceptions import RedisError

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.core.ids import Ids
from pool.core.names import KEPT_KEY, LOCK_PREFIX

_HELD_ELSEWHERE, _FOUND_EMPTY = 0, 2
_TAKE = (
    "if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end "
    "if redis.call('set', KEYS[2], '1', 'NX') then return 2 end return 1"
)
_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Lease(Protocol):
    """A lock that is held, as far as we know."""

    @property
    def found_empty(self) -> bool:
        """Whether Redis had lost what it was to keep when this lock was taken; only one run is told so."""

    def held(self) -> bool:
        """Asked before each step: False once it was lost, stolen, or not renewed in time."""


class Locks(Protocol):
    """Where locks come from."""

    def taken(self, name: str, ttl_s: float) -> Any:
        """A context manager: a `Lease`, or None if somebody else holds it. Raises `Transient` if Redis can not be asked."""

    def holder(self, name: str) -> str | None:
        """The token of who holds it."""


class RedisLocks:
    """Locks in one Redis."""

    def __init__(self, redis: Redis, *, clock: Clock, ids: Ids, who: str) -> None:
        self._redis = redis
        self._clock = clock
        self._ids = ids
        self._who = who

    @contextmanager
    def taken(self, name: str, ttl_s: float) -> Iterator[Lease | None]:
        """One token per run, so two threads of one process never hold one lock together."""
        lease = _RedisLease(
            self._redis, f"{LOCK_PREFIX}{name}", f"{self._who}/{self._ids.token()}", ttl_s, self._clock
        )
        if not lease.take():
            yield None
            return
        try:
            yield lease
        finally:
            lease.release()

    def holder(self, name: str) -> str | None:
        try:
            value: Any = self._redis.get(f"{LOCK_PREFIX}{name}")
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
        return value.decode() if value else None


class _RedisLease:
    """Renewed by its own thread at a third of its time; a local deadline decides when Redis does not answer."""

    def __init__(self, redis: Redis, key: str, token: str, ttl_s: float, clock: Clock) -> None:
        self._redis = redis
        self._key = key
        self._token = token
        self._ttl_ms = int(ttl_s * 1000)
        self._clock = clock
        self._deadline = 0.0
        self.found_empty = False
        self._lost = threading.Event()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        asked = self._clock.monotonic()
        try:
            answer = self._redis.eval(_TAKE, 2, self._key, KEPT_KEY, self._token, str(self._ttl_ms))
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
        if answer == _HELD_ELSEWHERE:
            return False
        self.found_empty = answer == _FOUND_EMPTY
        self._deadline = asked + self._ttl_ms / 1000
        self._thread = threading.Thread(target=self._renew_for_ever, name=f"renew {self._key}", daemon=True)
        self._thread.start()
        return True

    def held(self) -> bool:
        return not self._lost.is_set() and self._clock.monotonic() < self._deadline

    def release(self) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join(timeout=1)
        try:
            self._redis.eval(_RELEASE, 1, self._key, self._token)
        except RedisError:
            self._lost.set()  # it expires by itself

    def _renew_for_ever(self) -> None:
        while not self._clock.wait(self._done, self._ttl_ms / 3000):
            asked = self._clock.monotonic()
            try:
                renewed = self._redis.eval(_RENEW, 1, self._key, self._token, str(self._ttl_ms))
            except Exception:  # noqa: BLE001, S112 - the deadline tells
                continue
            if not renewed:
                self._lost.set()
                return
            self._deadline = asked + self._ttl_ms / 1000
