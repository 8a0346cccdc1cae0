"""The master keys of a pool: the current one and, during a key change, the previous or the next
one. All secrets are derived from them and none is stored. Pure.

The id of a worker ends with the mark of the key that it was created under, so that its tokens stay
valid while the key is changed. A worker without a mark is older than marks, and so older than any
change of the key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from pool.core import signing, tokens
from pool.core.errors import BrokenPromise, Transient
from pool.core.ids import WorkerId
from pool.core.signing import InternalTasks, OrgKey

_MARKED = re.compile(r".*-k([0-9a-f]{6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyring:
    """The accepted master keys. Only `current` is used to create workers and org keys."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)
    next: bytes | None = field(default=None, repr=False)

    @property
    def are_given(self) -> bool:
        """Return whether this process has keys and can make tokens."""
        return True

    @property
    def honoured(self) -> tuple[bytes, ...]:
        return tuple(key for key in (self.current, self.previous, self.next) if key is not None)

    @property
    def suffix(self) -> str:
        """Return the suffix of the ids of workers that are created under the current key."""
        return f"-k{_mark(self.current)}"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Return the suffixes for all accepted keys."""
        return tuple(f"-k{_mark(key)}" for key in self.honoured)

    def marked(self, worker_id: WorkerId) -> WorkerId:
        """Return the id of a new worker, with the mark of the current key."""
        return WorkerId(worker_id + self.suffix)

    def knows(self, worker_id: WorkerId) -> bool:
        """Return whether the key that this worker was created under is accepted."""
        return self._master(worker_id) is not None

    def is_current(self, worker_id: WorkerId) -> bool:
        """Return whether the worker was created under the current key."""
        return self._master(worker_id) == self.current

    def worker_key(self, worker_id: WorkerId) -> str:
        """Return the key of one worker.

        Raises `Transient` if this process does not have the worker's master key: another process may have it.
        """
        master = self._master(worker_id)
        if master is None:
            raise Transient(
                f"worker {worker_id} was created under a master key that this process does not have"
            )
        return tokens.worker_key(master, worker_id)

    def org_key(self, org: str, version: int, *, own_queue: bool) -> OrgKey:
        """Return the key for an org."""
        return signing.org_key(self.current, org, version, own_queue=own_queue)

    def org_secrets(self, org: str, version: int) -> list[str]:
        """Return the secrets that an org may have, one per accepted master key."""
        return [signing.org_key(master, org, version).secret for master in self.honoured]

    def internal_tasks(self) -> InternalTasks:
        """Return the signer and verifier of internal tasks."""
        return InternalTasks.of(self.honoured)

    def _master(self, worker_id: WorkerId) -> bytes | None:
        marked = _MARKED.fullmatch(worker_id)
        if marked is None:
            return self.previous or self.current
        return next((key for key in self.honoured if _mark(key) == marked[1]), None)


class NoKeys(Keyring):
    """The keyring of a process without a master key: every use of a key raises."""

    def __init__(self) -> None:
        """Hold no keys."""

    @property
    def are_given(self) -> bool:
        return False

    @property
    def current(self) -> bytes:
        raise BrokenPromise("a process without a master key tried to use one")

    previous = next = current


def _mark(master_key: bytes) -> str:
    return hmac.new(master_key, b"mark", hashlib.sha256).hexdigest()[:6]
