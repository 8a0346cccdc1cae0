"""The only place where adapters are built."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis import Redis

from pool import config
from pool.broker.locks import Lease, RedisLocks
from pool.core.clock import SystemClock
from pool.core.errors import BrokenPromise, ConfigInvalid, Transient
from pool.core.ids import OrgId, ProfileName, RandomIds
from pool.core.keys import NoKeys
from pool.core.names import ACQUIRE, FLEET
from pool.core.records import ReplyTo
from pool.core.settings import Settings, nesting_problems
from pool.core.threads import Threads
from pool.drivers.port import Driver
from pool.drivers.workerapi import HttpWorkerApi
from pool.lifecycle.denials import Denials
from pool.lifecycle.deps import Broker, Deps
from pool.metrics import Metrics
from pool.store import Store, connect, migrations, orgs

if TYPE_CHECKING:
    from pool.drivers.kubernetes.api import KubeApi
    from pool.drivers.kubernetes.inspecting import Inspector

_REDIS_TIMEOUT_S = 2.0
# The part of a call's time that a thread which serves callers waits for a lock.
LOCK_PART = 5
_FORBIDDEN = 403


class NobodyListens:
    """A broker for a process that sends nothing: every worker has been stopped, or it may not speak to them. Passes find in the table what is to be done."""

    def send(self, task: str, **arguments: Any) -> None:
        """Dropped; what it asked for is in the table."""

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Not delivered; the next reap does."""
        raise Transient("this process does not deliver answers")

    def nudge(self, profile: ProfileName) -> None:
        """Dropped."""


class _NoLocks:
    """Locks of a process without Redis; passes need them, operators' verbs do not."""

    def taken(self, name: str, ttl_s: float) -> AbstractContextManager[Lease | None]:  # noqa: ARG002
        raise BrokenPromise(f"a process without Redis tried to lock {name}")

    def holder(self, name: str) -> str | None:  # noqa: ARG002
        return None


def build_for_operators(settings: Settings, store: Store, *, role: str) -> Deps:
    """What operators' verbs need and no more: the table. No master key, no Redis, no cluster; passes carry out what the table says."""
    clock = SystemClock()

    def no_driver() -> Driver:
        raise BrokenPromise(f"{role} tried to change a pod")

    return Deps(
        store=store,
        broker=NobodyListens(),
        locks=_NoLocks(),
        worker_api=HttpWorkerApi(clock),
        clock=clock,
        ids=RandomIds(),
        metrics=Metrics(role=role, driver=settings.pool.driver, profiles=settings.profiles),
        settings=settings,
        keys=NoKeys(),
        who=f"{role}@{socket.gethostname()}:{os.getpid()}",
        started_at=store.now(),
        make_driver=no_driver,
    )


def build(
    settings: Settings, *, broker: Broker, role: str, threads: int = 10, watched: Threads | None = None
) -> Deps:
    """Everything that one process of this role needs. Asserts the time budgets and the schema first; opens nothing else yet.
    `watched`: the process's long-lived threads, if it has others than the driver's."""
    if problems := nesting_problems(settings.pool):
        raise ConfigInvalid(problems)
    clock, ids = SystemClock(), RandomIds()
    who = f"{role}@{socket.gethostname()}:{os.getpid()}"
    store = open_store(settings, connections=threads + 5, lock_timeout_s=_lock_timeout_s(settings, role))
    migrations.assert_current(store)
    redis = open_redis(settings)
    metrics = Metrics(role=role, driver=settings.pool.driver, profiles=settings.profiles)
    metrics.spawn_limit.set(settings.pool.fleet_threads if role == FLEET else 0)
    return Deps(
        store=store,
        broker=broker,
        locks=RedisLocks(redis, clock=clock, ids=ids, who=who),
        worker_api=HttpWorkerApi(clock),
        clock=clock,
        ids=ids,
        metrics=metrics,
        settings=settings,
        keys=config.keyring(settings),
        who=who,
        started_at=store.now(),
        make_driver=lambda: build_driver(settings, metrics, Denials(store, clock).saw, watched),
    )


def open_store(settings: Settings, *, connections: int = 5, lock_timeout_s: float | None = None) -> Store:
    """The store alone, for commands that only look."""
    return connect(
        config.database_url(settings),
        call_timeout_s=settings.pool.call_timeout_s,
        lock_timeout_s=lock_timeout_s,
        connections=connections,
    )


def _lock_timeout_s(settings: Settings, role: str) -> float | None:
    """Callers of all orgs share the threads of an acquire worker: none of them waits long for a row that another transaction holds."""
    return settings.pool.call_timeout_s / LOCK_PART if role == ACQUIRE else None


def open_redis(settings: Settings) -> Redis:
    """A client of the broker whose every call is bounded. Connects when it is used."""
    return Redis.from_url(
        config.broker_url(settings), socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S
    )


def build_driver(
    settings: Settings,
    metrics: Metrics | None = None,
    forbidden: Callable[[str, str], None] | None = None,
    watched: Threads | None = None,
) -> Driver:
    """What makes pods, by the setting of that name. `forbidden` hears of every verb and resource that the cluster says no to."""
    if settings.pool.driver == "kubernetes":
        metrics = metrics or Metrics()
        watched = watched or Threads(SystemClock(), metrics.thread_restarted)
        return _kubernetes_driver(settings, metrics, forbidden or _nobody_is_told, watched)
    from pool.drivers.local.driver import LocalDriver

    root: Path = config.data_dir(settings) / "local"
    return LocalDriver(root, clock=SystemClock(), call_timeout_s=settings.pool.call_timeout_s)


def _kubernetes_driver(
    settings: Settings, metrics: Metrics, forbidden: Callable[[str, str], None], watched: Threads
) -> Driver:
    from pool.drivers.kubernetes.driver import KubernetesDriver

    pool = settings.pool
    connections = max(pool.fleet_threads, pool.bind_threads, pool.passes_threads) + 5
    api = _kubernetes_api(settings, metrics, forbidden, connections=connections)
    return KubernetesDriver(
        api,
        settings.kubernetes,
        settings.profiles,
        clock=SystemClock(),
        call_timeout_s=pool.call_timeout_s,
        threads=watched,
    )


def open_cluster(settings: Settings) -> Inspector:
    """A look at the cluster for a check-up. `Refused` if there is no access to one; makes no call yet."""
    from pool.drivers.kubernetes.inspecting import Inspector

    api = _kubernetes_api(settings, Metrics(), _nobody_is_told, connections=1)
    return Inspector(api, settings.kubernetes, settings.profiles)


def _kubernetes_api(
    settings: Settings, metrics: Metrics, forbidden: Callable[[str, str], None], *, connections: int
) -> KubeApi:
    from pool.drivers.kubernetes import access
    from pool.drivers.kubernetes.api import KubeApi
    from pool.drivers.kubernetes.rights import DoctorRight, Right
    from pool.drivers.kubernetes.throttle import Throttle

    def called(asked: Right | DoctorRight, code: int) -> None:
        metrics.api_calls.labels(asked.verb, asked.resource, str(code)).inc()
        # Nodes, and what only a check-up looks at, need not be readable; without them the rest works.
        if code == _FORBIDDEN and isinstance(asked, Right) and not asked.of_the_cluster:
            forbidden(asked.verb, asked.resource)

    # A counter that only appears with its first refusal has not grown, as Prometheus reckons, and would wake nobody.
    for right in Right:
        metrics.api_calls.labels(right.verb, right.resource, str(_FORBIDDEN))
    kubernetes, clock = settings.kubernetes, SystemClock()
    return KubeApi(
        lambda: access.load(kubernetes, connections=connections),
        throttle=Throttle(qps=kubernetes.qps, burst=kubernetes.burst, clock=clock),
        clock=clock,
        call_timeout_s=settings.pool.call_timeout_s,
        called=called,
    )


def _nobody_is_told(_verb: str, _resource: str) -> None:
    pass


def seed(settings: Settings, store: Store) -> None:
    """The file's orgs, where the table has none of that name."""
    with store.write() as tx:
        for name, defaults in settings.orgs.items():
            orgs.seed(tx, OrgId(name), defaults)
