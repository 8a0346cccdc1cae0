"""A cache of the orgs and of the accepted versions of their keys.

It is read from the table every few seconds, so that a revoked key or a new org takes effect
everywhere within that time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future

import structlog

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.core.ids import OrgId
from pool.core.keys import Keyring
from pool.core.names import queue_of
from pool.core.settings import PoolSettings
from pool.store import Store, orgkeys, orgs
from pool.store.orgkeys import Versions
from tasks.options import LANE

log = structlog.get_logger(__name__)

FRESH_S = 5.0
# A key newer than the known ones is looked up at once, but not for every message with an invented
# version.
LOOK_AGAIN_S = 1.0
_MOST_SECRETS = 10_000
_ONLY_THE_FIRST = Versions()


class KnownOrgs:
    """Any thread may use it. While the table cannot be read, the last result is used."""

    def __init__(self, store: Store, keys: Keyring, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._read_at: float | None = None
        self._versions: Mapping[OrgId, Versions] = {}
        self._names: tuple[OrgId, ...] = ()
        self._secrets: dict[tuple[str, int], list[str]] = {}
        self._turn = threading.Lock()
        self._looked_at = -LOOK_AGAIN_S
        self._reading: Future[None] | None = None

    @property
    def names(self) -> tuple[OrgId, ...]:
        """All orgs, in order."""
        return self._names

    def keep_fresh(self, threads: Executor) -> None:
        """Read the table again if the cache is old. The first read is synchronous and may raise
        `Transient`.
        """
        if self._read_at is None:
            self.read()
        elif self._clock.monotonic() - self._read_at > FRESH_S and (
            self._reading is None or self._reading.done()
        ):
            self._reading = threads.submit(self.read)

    def read(self) -> None:
        """Read the table now. Raise `Transient` if it cannot be read and never was."""
        with self._turn:
            began = self._clock.monotonic()
            try:
                with self._store.read() as tx:
                    self._versions, found = orgkeys.every(tx), orgs.every(tx)
            except Transient as exc:
                if self._read_at is None:
                    raise
                log.warning("orgs_not_read", cause=str(exc))
                return
            self._names = tuple(org.id for org in found)
            self._read_at = began

    def secrets(self, org: str, version: int) -> list[str]:
        """Return the secrets that this org may sign with at this version; none if the version is
        not accepted.
        """
        if not self._honours(org, version):
            return []
        known = self._secrets.get((org, version))
        if known is None:
            if len(self._secrets) >= _MOST_SECRETS:
                self._secrets = {}
            known = self._secrets[org, version] = self._keys.org_secrets(org, version)
        return known

    def _honours(self, org: str, version: int) -> bool:
        known = self._versions.get(OrgId(org), _ONLY_THE_FIRST)
        now = self._clock.monotonic()
        if version > known.newest and now - self._looked_at > LOOK_AGAIN_S:
            self._looked_at = now
            self.read()
            known = self._versions.get(OrgId(org), _ONLY_THE_FIRST)
        return known.accepts(version)


class OrgQueues:
    """The queues that the lane reads: the common one and, with `queue_per_org`, one for each org."""

    def __init__(self, pool: PoolSettings, orgs: KnownOrgs, threads: Executor) -> None:
        self._are_signed = pool.signed_requests
        self._per_org = pool.queue_per_org
        self._orgs = orgs
        self._threads = threads

    def names(self) -> list[str]:
        """Return the queues to read now. Raise `Transient` if the orgs were never read and cannot be."""
        if not self._are_signed:
            return [LANE]
        self._orgs.keep_fresh(self._threads)
        return [LANE, *map(queue_of, self._orgs.names)] if self._per_org else [LANE]
