"""Signed requests: who asks, shown by a key that only its org has. Pure.

An org's key is derived from the master key, so that nothing secret is stored. The signature covers everything that decides what is done and where the
answer goes: task, id, org, arguments, reply address, end of validity and a nonce. Celery's own signing covers the body alone, so that
a signed message can be given another task's name.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pool.errors import InvalidInput

HEADER = "warmpool_auth"
# What the control plane signs its own tasks with.
INTERNAL_HEADER = "warmpool_internal"
# How long a signature is good for: longer than a message may lie unacknowledged before it is delivered again.
VALID_S = 300
FIRST_VERSION = 1
REPLY_PREFIX = "warmpool.reply."
# Ends an org's name in the names of keys; no org has one in its own, so that no org's prefix is the beginning of another's.
END_OF_ORG = ":"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_ORG = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_KEY = re.compile(rf"wpk1:({_ORG}):([1-9][0-9]{{0,8}}):([0-9a-f]{{64}})(:own)?")
_PROOF = re.compile(
    rf"1:({_ORG}):([1-9][0-9]{{0,8}}):([0-9]{{1,12}}):([A-Za-z0-9_-]{{16,64}}):([0-9a-f]{{64}})"
)


class Trouble(StrEnum):
    """Why a request is not believed."""

    UNSIGNED = "unsigned"
    MALFORMED = "malformed"
    UNKNOWN_KEY = "unknown_key"
    MISMATCH = "mismatch"
    EXPIRED = "expired"
    AHEAD = "ahead"
    REPLAYED = "replayed"
    FOREIGN_ORG = "foreign_org"
    FOREIGN_ADDRESS = "foreign_address"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgKey:
    """What an org shows that it is itself with. With `own_queue` the pool has a queue for each org."""

    org: str
    version: int
    secret: str = field(repr=False)
    own_queue: bool = False

    @classmethod
    def parse(cls, text: str) -> OrgKey:
        """As `warmpool org key` prints it."""
        found = _KEY.fullmatch(text.strip())
        if found is None:
            raise InvalidInput("org_key", "must be a line that `warmpool org key` prints: wpk1:ORG:VERSION:…")
        org, version, secret, own = found.groups()
        return cls(org=org, version=int(version), secret=secret, own_queue=bool(own))

    @property
    def text(self) -> str:
        return f"wpk1:{self.org}:{self.version}:{self.secret}{':own' if self.own_queue else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is signed of a message. The address is that of a reply list, or empty for Celery's own result."""

    task: str
    task_id: str
    address: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a message shows for itself."""

    org: str
    version: int
    expires_s: int
    nonce: str
    mac: str

    @classmethod
    def parse(cls, header: object) -> Proof | None:
        found = _PROOF.fullmatch(header) if isinstance(header, str) else None
        if found is None:
            return None
        org, version, expires_s, nonce, mac = found.groups()
        return cls(org=org, version=int(version), expires_s=int(expires_s), nonce=nonce, mac=mac)

    @property
    def text(self) -> str:
        return f"1:{self.org}:{self.version}:{self.expires_s}:{self.nonce}:{self.mac}"


def org_key(master_key: bytes, org: str, version: int, *, own_queue: bool = False) -> OrgKey:
    """The key of one org at one version."""
    secret = hmac.new(master_key, f"org|{version}|{org}".encode(), hashlib.sha256).hexdigest()
    return OrgKey(org=org, version=version, secret=secret, own_queue=own_queue)


def sign(key: OrgKey, asked: Asked, *, expires_s: int, nonce: str) -> str:
    """The value of the header."""
    proof = Proof(org=key.org, version=key.version, expires_s=expires_s, nonce=nonce, mac="")
    mac = _mac(key.secret, proof, asked)
    return f"{proof.text}{mac}"


def trouble_with(
    proof: Proof, asked: Asked, secrets: Iterable[str], *, now_s: float, limit_s: float
) -> Trouble | None:
    """Why it is not to be believed at this time of the broker's clock, if so. `secrets` are those that this org and version may have. Nothing is said
    of a nonce that was used before: that takes a memory."""
    known = list(secrets)
    if not known:
        return Trouble.UNKNOWN_KEY
    try:
        right = any(hmac.compare_digest(_mac(secret, proof, asked), proof.mac) for secret in known)
    except (TypeError, ValueError, RecursionError):  # arguments that no caller of ours could have signed
        right = False
    if not right:
        return Trouble.MISMATCH
    if proof.expires_s <= now_s:
        return Trouble.EXPIRED
    return Trouble.AHEAD if proof.expires_s > now_s + limit_s else None


@dataclass(frozen=True, slots=True)
class InternalTasks:
    """Signs and checks the tasks that the control plane sends itself. The first secret signs, all of them are accepted."""

    secrets: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, master_keys: Iterable[bytes]) -> InternalTasks:
        return cls(tuple(hmac.digest(key, b"internal tasks", "sha256") for key in master_keys))

    def sign(self, asked: Asked) -> str:
        """The value of `INTERNAL_HEADER`."""
        return _internal_mac(self.secrets[0], asked)

    def accepts(self, header: object, asked: Asked) -> bool:
        if not isinstance(header, str) or not header.isascii():
            return False
        return any(hmac.compare_digest(_internal_mac(secret, asked), header) for secret in self.secrets)


def _internal_mac(secret: bytes, asked: Asked) -> str:
    signed = ["warmpool-internal-1", asked.task, asked.task_id, list(asked.args), dict(asked.kwargs)]
    return hmac.digest(secret, _ENCODER.encode(signed).encode(), "sha256").hex()


def queue_of(org: str) -> str:
    """The queue of an org that has one of its own."""
    return f"acquire.{org}."


def reply_prefix_of(org: str) -> str:
    """How the names of an org's own reply lists begin."""
    return f"{REPLY_PREFIX}{task_prefix_of(org)}"


def task_prefix_of(org: str) -> str:
    """How the ids of an org's own tasks begin, and so the keys of their results."""
    return f"{org}{END_OF_ORG}"


def is_answered_at_home(proof: Proof, asked: Asked) -> bool:
    """Whether the answer goes where only this org may read."""
    if asked.address:
        return asked.address.startswith(reply_prefix_of(proof.org))
    return asked.task_id.startswith(task_prefix_of(proof.org))


def _mac(secret: str, proof: Proof, asked: Asked) -> str:
    """Over a JSON array, in which nothing can pass for something else: keys in order, no spaces, ASCII only."""
    signed = [
        *(
            "warmpool-request-1",
            asked.task,
            asked.task_id,
            proof.org,
            proof.version,
            proof.expires_s,
            proof.nonce,
        ),
        *(asked.address, list(asked.args), dict(asked.kwargs)),
    ]
    return hmac.digest(bytes.fromhex(secret), _ENCODER.encode(signed).encode(), "sha256").hex()
