"""What a check is given and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis import Redis

from pool import config, wiring
from pool.settings import Settings
from pool.store import Store

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector

_REDIS_TIMEOUT_S = 3.0


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    UNCHECKED = "unchecked"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. `id` never changes: scripts and the runbook name it. `repair`, if there is one, is safe to run at any time
    and says what it did."""

    id: str
    level: Level
    evidence: str
    fix: str = ""
    repair: Callable[[], str] | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "level": str(self.level),
            "evidence": self.evidence,
            "fix": self.fix,
            "can_fix": self.repair is not None,
        }


def ok(ident: str, evidence: str) -> Finding:
    """Nothing wrong."""
    return Finding(id=ident, level=Level.OK, evidence=evidence)


def unchecked(ident: str, evidence: str) -> Finding:
    """What could not be looked at, and why: neither well nor wrong."""
    return Finding(id=ident, level=Level.UNCHECKED, evidence=f"not checked: {evidence}")


@dataclass
class Patient:
    """The installation: its settings, and connections that are made when a check first asks for them."""

    settings: Settings
    # Whether there is a cluster and it was heard.
    cluster_answers: bool = False

    @cached_property
    def store(self) -> Store:
        return wiring.open_store(self.settings)

    @cached_property
    def redis(self) -> Redis:
        return Redis.from_url(
            config.broker_url(self.settings),
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
        )

    @cached_property
    def cluster(self) -> Inspector:
        """`Refused` if there is no access to one."""
        return wiring.open_cluster(self.settings)

    def close(self) -> None:
        for made in ("store", "redis", "cluster"):
            if made in self.__dict__:
                getattr(self, made).close()


Check = Callable[[Patient], Iterator[Finding]]
