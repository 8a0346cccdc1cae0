"""The master keys of a pool: the one in use, and beside it the one that was, or the one that will be. Everything secret derives from them; nothing is
stored. Pure.

A worker's id ends with the mark of the key that it was made under, so that its tokens stay what they are while another key is rolled in. A
worker without a mark is older than marks, and so than any change of the key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from pool import signing, tokens
from pool.errors import BrokenPromise, Transient
from pool.ids import WorkerId
from pool.signing import InternalTasks, OrgKey

_MARKED = re.compile(r".*-k([0-9a-f]{6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """`current` makes; all of them are honoured."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)
    next: bytes | None = field(default=None, repr=False)

    @property
    def honoured(self) -> tuple[bytes, ...]:
        return tuple(key for key in (self.current, self.previous, self.next) if key is not None)

    @property
    def suffix(self) -> str:
        """What the id of every worker ends with that is made under the key in use."""
        return f"-k{_mark(self.current)}"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """The same of all keys that are honoured."""
        return tuple(f"-k{_mark(key)}" for key in self.honoured)

    def marked(self, worker_id: WorkerId) -> WorkerId:
        """The id for a worker that is about to be made."""
        return WorkerId(worker_id + self.suffix)

    def knows(self, worker_id: WorkerId) -> bool:
        """Whether the key that this worker was made under is here."""
        return self._master(worker_id) is not None

    def is_current(self, worker_id: WorkerId) -> bool:
        """Whether it was made under the key in use."""
        return self._master(worker_id) == self.current

    def worker_key(self, worker_id: WorkerId) -> str:
        """The key of one worker. `Transient`: it was made under a master key that this process was not given, and another process may have been."""
        master = self._master(worker_id)
        if master is None:
            raise Transient(f"worker {worker_id} was made under a master key that this process does not have")
        return tokens.worker_key(master, worker_id)

    def org_key(self, org: str, version: int, *, own_queue: bool) -> OrgKey:
        """What an org is given."""
        return signing.org_key(self.current, org, version, own_queue=own_queue)

    def org_secrets(self, org: str, version: int) -> list[str]:
        """What an org may have been given."""
        return [signing.org_key(master, org, version).secret for master in self.honoured]

    def internal_tasks(self) -> InternalTasks:
        """What signs and checks the control plane's own tasks."""
        return InternalTasks.of(self.honoured)

    def _master(self, worker_id: WorkerId) -> bytes | None:
        marked = _MARKED.fullmatch(worker_id)
        if marked is None:
            return self.previous or self.current
        return next((key for key in self.honoured if _mark(key) == marked[1]), None)


class NoKeys(Keyring):
    """For a process that is given no master key: whatever needs one raises, and no token is ever made."""

    def __init__(self) -> None:
        """Nothing to keep."""

    @property
    def current(self) -> bytes:
        raise BrokenPromise("a process without a master key was about to use one")

    previous = next = current


def _mark(master_key: bytes) -> str:
    return hmac.new(master_key, b"mark", hashlib.sha256).hexdigest()[:6]
