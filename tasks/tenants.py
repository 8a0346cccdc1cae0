"""What a process knows of orgs: which of their keys are honoured, and which of them there are. Read from the table every few seconds, so that a
key that was taken back and an org that is new are known everywhere within that time."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import structlog

from pool.clock import Clock
from pool.errors import Transient
from pool.ids import OrgId
from pool.keys import Keyring
from pool.store import Store, orgkeys, orgs
from pool.store.orgkeys import Versions

log = structlog.get_logger(__name__)

FRESH_S = 5.0
# A key newer than what is known is looked up at once, but not by every message of somebody who makes versions up.
LOOK_AGAIN_S = 1.0
_MOST_SECRETS = 10_000
_ONLY_THE_FIRST = Versions()


class Tenants:
    """Any thread may ask. While the table can not be read, what was read last holds."""

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

    @property
    def names(self) -> tuple[OrgId, ...]:
        """All orgs, in order."""
        return self._names

    @property
    def were_read(self) -> bool:
        return self._read_at is not None

    def is_older_than(self, seconds: float) -> bool:
        return self._read_at is None or self._clock.monotonic() - self._read_at > seconds

    def read(self) -> None:
        """Read the table now. `Transient` if it can not be, and was never before."""
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

    def read_if_old(self) -> None:
        if self.is_older_than(FRESH_S):
            self.read()

    def secrets(self, org: str, version: int) -> list[str]:
        """What this org may sign with at this version; nothing if the version is not honoured."""
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
        return known.honours(version)
