"""The task contract: validate what callers send, and build what they receive. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pool.core.errors import InvalidInput
from pool.core.ids import ClaimId, OrgId, ProfileName, RequestPk
from pool.core.names import DNS_LABEL, DNS_LABEL_RULE, ORG_NAME, ORG_NAME_RULE
from pool.core.states import Condition, Reason, Source

LEASE_S = (5, 3600)
WAIT_S = (0, 3600)
MAX_RENEWALS = 10_000
# Any longer TTL is stored as this one: the highest number of its column.
LONGEST_TTL_S = 2**31 - 1
_TEXT_LIMIT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquire:
    """The validated arguments of `pool.acquire`."""

    org: OrgId
    profile: ProfileName
    request_id: str
    lease_s: int
    ttl_s: int | None
    wait_s: int

    @classmethod
    def parse(cls, arguments: Mapping[str, Any], *, task_id: str) -> Acquire:
        """Validate the arguments; `InvalidInput` names the invalid field.

        `ttl_s` is kept as requested; the pool's limit applies when the worker is released.
        """
        ttl_s = arguments.get("ttl_s")
        return cls(
            org=org_id(arguments.get("org")),
            profile=profile_name(arguments.get("profile", "default")),
            request_id=_text(
                "request_id", task_id if arguments.get("request_id") is None else arguments["request_id"]
            ),
            lease_s=_whole("lease_s", arguments.get("lease_s", 30), *LEASE_S),
            ttl_s=None if ttl_s is None else _ttl_s(ttl_s),
            wait_s=_whole("wait_s", arguments.get("wait_s", 0), *WAIT_S),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """The validated arguments of `pool.renew`."""

    claim_ids: tuple[ClaimId, ...]
    # For a signed request: renew only claims of this org.
    org: OrgId | None = None

    @classmethod
    def parse(cls, claim_ids: Any, org: OrgId | None = None) -> Renew:
        if isinstance(claim_ids, str | bytes) or not isinstance(claim_ids, Sequence):
            raise InvalidInput("claim_ids", f"must be a list of claim ids, got {_shown(claim_ids)}")
        if len(claim_ids) > MAX_RENEWALS:
            raise InvalidInput(
                "claim_ids", f"must be at most {MAX_RENEWALS} claim ids per call, got {len(claim_ids)}"
            )
        return cls(
            claim_ids=tuple(ClaimId(_text("claim_ids", c)) for c in dict.fromkeys(map(_hashable, claim_ids))),
            org=org,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The validated arguments of `pool.release`."""

    claim_id: ClaimId
    condition: Condition
    # For a signed request: release only a claim of this org.
    org: OrgId | None = None

    @classmethod
    def parse(cls, claim_id: Any, condition: Any, org: OrgId | None = None) -> Release:
        if not isinstance(condition, str) or condition not in list(Condition):
            raise InvalidInput("condition", f"must be one of {', '.join(Condition)}, got {_shown(condition)}")
        return cls(claim_id=ClaimId(_text("claim_id", claim_id)), condition=Condition(condition), org=org)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The validated arguments of `pool.cancel`."""

    org: OrgId
    request_id: str

    @classmethod
    def parse(cls, org: Any, request_id: Any) -> Cancel:
        return cls(org=org_id(org), request_id=_text("request_id", request_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The answer to an acquire that got a worker."""

    claim_id: str
    worker_id: str
    epoch: int
    pod: str
    endpoint: str
    token: str = field(repr=False)
    lease_expires_at: datetime
    source: Source
    # The parking time in force, if the request asked for a longer one.
    ttl_s: int | None = None
    pk: str = field(default="", repr=False)

    def numbered(self, pk: str) -> Granted:
        """Return the same answer with the key of its request."""
        return replace(self, pk=pk)

    def as_dict(self) -> dict[str, Any]:
        clamped = {} if self.ttl_s is None else {"ttl_s": self.ttl_s}
        return {
            "outcome": "granted",
            "claim_id": self.claim_id,
            "worker_id": self.worker_id,
            "epoch": self.epoch,
            "pod": self.pod,
            "endpoint": self.endpoint,
            "token": self.token,
            "lease_expires_at": instant(self.lease_expires_at),
            "source": str(self.source),
            **clamped,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAnswer:
    """The answer to an acquire that got no worker: the reason, and when a retry may succeed."""

    reason: Reason
    detail: str = ""
    retry_after_s: float | None = None
    pk: str = field(default="", repr=False)

    def numbered(self, pk: str) -> RefusedAnswer:
        """Return the same answer with the key of its request."""
        return replace(self, pk=pk)

    def as_dict(self) -> dict[str, Any]:
        return {
            "outcome": "refused",
            "reason": str(self.reason),
            "retry_after_s": self.retry_after_s,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """No answer yet; it is delivered when the request is decided. `until_s` is the longest remaining wait."""

    pk: str
    until_s: float

    @property
    def request_pk(self) -> RequestPk:
        return RequestPk(self.pk)


def bound(names: tuple[str, ...], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return positional and keyword arguments as one mapping by name."""
    if len(args) > len(names):
        raise InvalidInput("arguments", f"must be at most {len(names)} ({', '.join(names)}), got {len(args)}")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise InvalidInput(str(name)[:80], f"is not an argument; the arguments are {', '.join(names)}")
        if name in given:
            raise InvalidInput(name, "was passed both by position and by name")
        given[name] = value
    return given


def instant(at: datetime) -> str:
    """Return a time in the format of answers: ISO 8601, UTC, milliseconds."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def org_id(value: Any) -> OrgId:
    if not isinstance(value, str) or not ORG_NAME.fullmatch(value):
        raise InvalidInput("org", f"must be {ORG_NAME_RULE}; got {_shown(value)}")
    return OrgId(value)


def profile_name(value: Any) -> ProfileName:
    if not isinstance(value, str) or not DNS_LABEL.fullmatch(value):
        raise InvalidInput("profile", f"must be {DNS_LABEL_RULE}; got {_shown(value)}")
    return ProfileName(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_LIMIT or not value.isprintable():
        raise InvalidInput(name, f"must be 1 to {_TEXT_LIMIT} printable characters, got {_shown(value)}")
    return value


def _whole(name: str, value: Any, least: int, most: int) -> int:
    fraction = isinstance(value, float) and not value.is_integer()  # includes infinity and NaN
    if isinstance(value, bool) or not isinstance(value, int | float) or fraction:
        raise InvalidInput(
            name, f"must be a whole number of seconds from {least} to {most}, got {_shown(value)}"
        )
    if not least <= value <= most:
        raise InvalidInput(name, f"must be from {least} to {most}, got {_shown(value)}")
    return int(value)


def _ttl_s(value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < 0:
        raise InvalidInput("ttl_s", f"must be a whole number of seconds, at least 0, got {_shown(value)}")
    return int(min(value, LONGEST_TTL_S))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str) else _text("claim_ids", value)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a huge number, or deeply nested lists
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= 80 else f"{text[:77]}..."
