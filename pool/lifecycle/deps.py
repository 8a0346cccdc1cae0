"""What the actions work with: adapters behind their ports, and the settings.

Built in `pool.wiring` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pool.broker.locks import Locks
from pool.core.clock import Clock
from pool.core.ids import Ids, ProfileName, WorkerId
from pool.core.keys import Keyring
from pool.core.profiles import revision
from pool.core.records import By, ReplyTo
from pool.core.settings import Profile, Settings
from pool.core.states import MoveReason
from pool.drivers.port import Driver
from pool.metrics import Metrics
from pool.store import Store
from pool.store.suspects import PROBE_FAILURES


class Broker(Protocol):
    """What the pool sends through Celery.

    Correctness does not depend on delivery: every message can be sent again from the table.
    """

    def send(self, task: str, **arguments: Any) -> None:
        """Enqueue a task of the pool soon. Never blocks, never raises."""

    def send_later(self, task: str, **arguments: Any) -> None:
        """Enqueue a task of the pool in about a second. Never blocks, never raises."""

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:
        """Deliver an answer to a waiting caller.

        Raises `Transient` if the delivery failed, `Refused` if it can never succeed.
        """

    def nudge(self, profile: ProfileName) -> None:
        """Request a refill of this profile soon. Repeated calls become one."""


class WorkerApi(Protocol):
    """The HTTP calls of the pool to a worker."""

    def activate(self, url: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> None:
        """POST the org's configuration.

        `Refused` if the worker refuses it, `Transient` if it does not answer.
        """

    def healthy(self, url: str, timeout_s: float) -> bool:
        """Return whether a GET answers 2xx."""


@dataclass(frozen=True, kw_only=True)
class Deps:
    """Everything that an action may use."""

    store: Store
    broker: Broker
    locks: Locks
    worker_api: WorkerApi
    clock: Clock
    ids: Ids
    metrics: Metrics
    settings: Settings
    keys: Keyring
    who: str
    make_driver: Callable[[], Driver]
    # Whether builds of this process's configuration may become the wanted ones.
    changes_builds: bool = True

    @cached_property
    def driver(self) -> Driver:
        """The driver, built at first use: a process that uses no pods does not load it."""
        return self.make_driver()

    @cached_property
    def rules(self) -> Mapping[str, Any]:
        """The settings that the rules in the database need."""
        settings, profiles = self.settings, self.settings.profiles
        return {
            "ttls": {
                name: settings.ttl_s(profile, call=None, org=None) for name, profile in profiles.items()
            },
            "most_ttl_s": settings.pool.hot_idle_ttl_max_s,
            "activates": [name for name, profile in profiles.items() if profile.activation_path],
            "protect": settings.pool.protect_before_grant,
            "max_workers": settings.pool.max_workers,
            "tries": settings.pool.activation_tries,
            "stuck_s": settings.pool.stuck_cutoff_s,
            "node_wait_s": max(settings.pool.unschedulable_limit_s, settings.pool.stuck_cutoff_s),
            "probe_failures": PROBE_FAILURES,
        }

    def rule_argument(self, **what: Any) -> dict[str, Any]:
        """Return the argument of a rule: the call, this process and the settings."""
        return {"who": self.who, "rules": self.rules, **what}

    @cached_property
    def revisions(self) -> dict[ProfileName, str]:
        """The build of each profile in this process's configuration."""
        return {ProfileName(name): revision(p) for name, p in self.settings.profiles.items()}

    def profile(self, name: ProfileName) -> Profile | None:
        return self.settings.profiles.get(name)

    def by(self, reason: MoveReason, detail: str = "") -> By:
        """Return this process as the actor, with this reason."""
        return By(who=self.who, reason=reason, detail=detail)

    def worker_key(self, worker_id: WorkerId) -> str:
        return self.keys.worker_key(worker_id)

    def new_worker(self) -> WorkerId:
        """Return the id of a new worker."""
        return self.keys.marked(self.ids.worker())

    def close(self) -> None:
        """Close connections. Pods are not affected."""
        if "driver" in self.__dict__:
            self.driver.close()
        self.store.close()
