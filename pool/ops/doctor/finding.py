"""The input of a check (`Installation`) and its result (`Finding`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redis import Redis

from pool import config, wiring
from pool.broker import connecting
from pool.core.settings import Settings
from pool.store import Store

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector

_REDIS_TIMEOUT_S = 3.0


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    UNCHECKED = "unchecked"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `id` is stable: scripts and the runbook use it. `repair` is safe to
    run at any time and returns what it did."""

    id: str
    level: Level
    evidence: str
    fix: str = ""
    repair: Callable[[], str] | None = None

    def as_log(self) -> dict[str, str]:
        """Return the fields of its log line."""
        return {"id": self.id, "evidence": self.evidence, "fix": self.fix}

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "level": str(self.level),
            "evidence": self.evidence,
            "fix": self.fix,
            "can_fix": self.repair is not None,
        }


def ok(ident: str, evidence: str) -> Finding:
    """Return a finding without a problem."""
    return Finding(id=ident, level=Level.OK, evidence=evidence)


def unchecked(ident: str, evidence: str, fix: str = "") -> Finding:
    """Return a finding for something that could not be checked, and why."""
    return Finding(id=ident, level=Level.UNCHECKED, evidence=f"not checked: {evidence}", fix=fix)


@dataclass
class Installation:
    """The installation: its settings, and connections that are opened on first use."""

    settings: Settings
    # Whether the driver is kubernetes and the API server has answered.
    cluster_answers: bool = False

    @cached_property
    def store(self) -> Store:
        return wiring.open_store(self.settings)

    @cached_property
    def redis(self) -> Redis:
        return connecting.connect(
            config.broker_url(self.settings),
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
        )

    @cached_property
    def cluster(self) -> Inspector:
        """Return the inspector of the cluster; raises `Refused` without credentials."""
        return wiring.open_cluster(self.settings)

    def close(self) -> None:
        for made in ("store", "redis", "cluster"):
            if made in self.__dict__:
                getattr(self, made).close()


Check = Callable[[Installation], Iterator[Finding]]
