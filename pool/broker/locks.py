"""Redis locks that prevent two runs from doing the same work. Correctness never depends on them.

One key per lock: `warmpool.lock.<name>` holds the token of one run and expires by itself. Renewal
and release compare the token, so a run that lost its lock cannot extend or release the lock of its
successor. `warmpool.kept` never expires: if it is missing when a lock is taken, Redis has lost all
other keys, too.
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
_RENEW = (
    "if redis.call('get', KEYS[1]) == ARGV[1] "
    "then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
)
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Lease(Protocol):
    """A lock that this process holds, as far as it can tell."""

    @property
    def found_empty(self) -> bool:
        """Return whether Redis had lost its keys when this lock was taken. True for one run only."""

    def held(self) -> bool:
        """Return False if the lock was lost or not renewed in time. Call it before each step."""


class Locks(Protocol):
    """The source of locks."""

    def taken(self, name: str, ttl_s: float) -> Any:
        """Return a context manager that yields a `Lease`, or None if another run holds the lock.

        Raises `Transient` if Redis does not answer.
        """

    def holder(self, name: str) -> str | None:
        """Return the token of the run that holds the lock."""


class RedisLocks:
    """Locks in one Redis."""

    def __init__(self, redis: Redis, *, clock: Clock, ids: Ids, who: str) -> None:
        self._redis = redis
        self._clock = clock
        self._ids = ids
        self._who = who

    @contextmanager
    def taken(self, name: str, ttl_s: float) -> Iterator[Lease | None]:
        """Take the lock with a token of its own, so that two threads of one process never hold it
        together.
        """
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
    """A lock that a thread renews after each third of its TTL.

    If Redis does not answer, a local deadline decides.
    """

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
        sent_at = self._clock.monotonic()
        try:
            answer = self._redis.eval(_TAKE, 2, self._key, KEPT_KEY, self._token, str(self._ttl_ms))
        except RedisError as exc:
            raise Transient(f"redis: {exc}") from exc
        if answer == _HELD_ELSEWHERE:
            return False
        self.found_empty = answer == _FOUND_EMPTY
        self._deadline = sent_at + self._ttl_ms / 1000
        self._thread = threading.Thread(target=self._renew_until_done, name=f"renew {self._key}", daemon=True)
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
            self._lost.set()  # the key expires by itself

    def _renew_until_done(self) -> None:
        while not self._clock.wait(self._done, self._ttl_ms / 3000):
            sent_at = self._clock.monotonic()
            try:
                renewed = self._redis.eval(_RENEW, 1, self._key, self._token, str(self._ttl_ms))
            except Exception:  # noqa: BLE001, S112 - the deadline decides
                continue
            if not renewed:
                self._lost.set()
                return
            self._deadline = sent_at + self._ttl_ms / 1000
