"""Sign and verify requests: a signature proves the org of the caller. Pure.

The key of an org is derived from the master key, so no secret is stored. The signature covers everything that
decides what is done and where the answer goes: task, id, org, arguments, reply address, expiry and a nonce.
Celery's own signing covers only the body, so a signed message could be given the name of another task.
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

from pool.core.errors import InvalidInput
from pool.core.names import ORG_PATTERN, reply_prefix_of, task_prefix_of

HEADER = "warmpool_auth"
# The header with the signature of internal tasks.
INTERNAL_HEADER = "warmpool_internal"
# Validity of a signature: longer than the visibility timeout, after which a message is delivered again.
VALID_S = 300
FIRST_VERSION = 1
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
_KEY = re.compile(rf"wpk1:({ORG_PATTERN}):([1-9][0-9]{{0,8}}):([0-9a-f]{{64}})(:own)?")
_PROOF = re.compile(
    rf"1:({ORG_PATTERN}):([1-9][0-9]{{0,8}}):([0-9]{{1,12}}):([A-Za-z0-9_-]{{16,64}}):([0-9a-f]{{64}})"
)


class SignatureProblem(StrEnum):
    """Why a signature is refused."""

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
    """The key with which an org signs. `own_queue`: each org has its own queue."""

    org: str
    version: int
    secret: str = field(repr=False)
    own_queue: bool = False

    @classmethod
    def parse(cls, text: str) -> OrgKey:
        """Parse the output of `warmpool org key`."""
        found = _KEY.fullmatch(text.strip())
        if found is None:
            raise InvalidInput("org_key", "must be a line printed by `warmpool org key`: wpk1:ORG:VERSION:…")
        org, version, secret, own = found.groups()
        return cls(org=org, version=int(version), secret=secret, own_queue=bool(own))

    @property
    def text(self) -> str:
        return f"wpk1:{self.org}:{self.version}:{self.secret}{':own' if self.own_queue else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The signed parts of a message. `address` is a reply list, or empty for a Celery result."""

    task: str
    task_id: str
    address: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The parsed signature header of a message."""

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
    """Return the key of one org at one version."""
    secret = hmac.new(master_key, f"org|{version}|{org}".encode(), hashlib.sha256).hexdigest()
    return OrgKey(org=org, version=version, secret=secret, own_queue=own_queue)


def sign(key: OrgKey, asked: Asked, *, expires_s: int, nonce: str) -> str:
    """The value of the header."""
    proof = Proof(org=key.org, version=key.version, expires_s=expires_s, nonce=nonce, mac="")
    mac = _mac(key.secret, proof, asked)
    return f"{proof.text}{mac}"


def trouble_with(
    proof: Proof, asked: Asked, secrets: Iterable[str], *, now_s: float, limit_s: float
) -> SignatureProblem | None:
    """Return why the signature is refused, or None. `now_s` is the broker's time; `secrets` are
    those that this org and version may have. Reuse of a nonce is not checked here.
    """
    known = list(secrets)
    if not known:
        return SignatureProblem.UNKNOWN_KEY
    try:
        right = any(hmac.compare_digest(_mac(secret, proof, asked), proof.mac) for secret in known)
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # arguments that cannot be encoded, so they were never signed
        right = False
    if not right:
        return SignatureProblem.MISMATCH
    if proof.expires_s <= now_s:
        return SignatureProblem.EXPIRED
    return SignatureProblem.AHEAD if proof.expires_s > now_s + limit_s else None


@dataclass(frozen=True, slots=True)
class InternalTasks:
    """Signs and verifies internal tasks. The first secret signs; all of them are accepted."""

    secrets: tuple[bytes, ...] = field(repr=False)

    @classmethod
    def of(cls, master_keys: Iterable[bytes]) -> InternalTasks:
        return cls(tuple(hmac.digest(key, b"internal tasks", "sha256") for key in master_keys))

    def sign(self, asked: Asked) -> str:
        """Return the value of `INTERNAL_HEADER`."""
        return _internal_mac(self.secrets[0], asked)

    def accepts(self, header: object, asked: Asked) -> bool:
        if not isinstance(header, str) or not header.isascii():
            return False
        return any(hmac.compare_digest(_internal_mac(secret, asked), header) for secret in self.secrets)


def _internal_mac(secret: bytes, asked: Asked) -> str:
    signed = ["warmpool-internal-1", asked.task, asked.task_id, list(asked.args), dict(asked.kwargs)]
    return hmac.digest(secret, _ENCODER.encode(signed).encode(), "sha256").hex()


def is_answered_at_home(proof: Proof, asked: Asked) -> bool:
    """Return whether only this org can read the answer."""
    if asked.address:
        return asked.address.startswith(reply_prefix_of(proof.org))
    return asked.task_id.startswith(task_prefix_of(proof.org))


def _mac(secret: str, proof: Proof, asked: Asked) -> str:
    """Return the MAC over an unambiguous JSON array: sorted keys, no spaces, ASCII only."""
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
