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
from pool.broker import connecting
from pool.broker.locks import Lease, RedisLocks
from pool.core.clock import SystemClock
from pool.core.connections import shared_by_threads
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
# The lock timeout of a thread that serves callers is the call timeout divided by this.
LOCK_PART = 5
_FORBIDDEN = 403


class DroppingBroker:
    """A broker for a process that sends nothing: all workers have stopped, or it must not send to them.

    Passes find the pending work in the table.
    """

    def send(self, task: str, **arguments: Any) -> None:
        """Drop the message. What it asks for is in the table."""

    def send_later(self, task: str, **arguments: Any) -> None:
        """Drop the message."""

    def reply(self, to: ReplyTo, answer: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Raise, because this process delivers no answers. The next reap delivers it."""
        raise Transient("this process cannot deliver answers: only acquire, fleet, bind and pass workers can")

    def nudge(self, profile: ProfileName) -> None:
        """Drop the message."""


class _NoLocks:
    """Locks for a process without Redis. Passes need locks; operators' commands do not."""

    def taken(self, name: str, ttl_s: float) -> AbstractContextManager[Lease | None]:  # noqa: ARG002
        raise BrokenPromise(f"a process without Redis tried to lock {name}")

    def holder(self, name: str) -> str | None:  # noqa: ARG002
        return None


def build_for_operators(settings: Settings, store: Store, *, role: str) -> Deps:
    """Return what operators' commands need: the database only.

    No master key, no Redis, no cluster. Passes carry out what the table contains.
    """
    clock = SystemClock()

    def no_driver() -> Driver:
        raise BrokenPromise(f"{role} tried to change a pod")

    return Deps(
        store=store,
        broker=DroppingBroker(),
        locks=_NoLocks(),
        worker_api=HttpWorkerApi(clock),
        clock=clock,
        ids=RandomIds(),
        metrics=Metrics(role=role, driver=settings.pool.driver, profiles=settings.profiles),
        settings=settings,
        keys=NoKeys(),
        who=f"{role}@{socket.gethostname()}:{os.getpid()}",
        make_driver=no_driver,
    )


def build(settings: Settings, *, broker: Broker, role: str, watched: Threads | None = None) -> Deps:
    """Return everything that a process of this role needs.

    Checks the time budgets and the schema first; opens no other connection yet. `watched` are the
    long-lived threads of the process, if it has others than the driver's.
    """
    if problems := nesting_problems(settings.pool):
        raise ConfigInvalid(problems)
    clock, ids = SystemClock(), RandomIds()
    who = f"{role}@{socket.gethostname()}:{os.getpid()}"
    shared = shared_by_threads(settings.pool, role)
    store = open_store(settings, connections=shared, lock_timeout_s=_lock_timeout_s(settings, role))
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
        make_driver=lambda: build_driver(settings, metrics, Denials(store, clock).saw, watched),
    )


def open_store(settings: Settings, *, connections: int = 5, lock_timeout_s: float | None = None) -> Store:
    """Return the store alone, for commands that only read."""
    return connect(
        config.database_url(settings),
        call_timeout_s=settings.pool.call_timeout_s,
        lock_timeout_s=lock_timeout_s,
        connections=connections,
        overflow=0,
        pooler=settings.pool.database_pooler,
        name=migrations.session_name(),
    )


def _lock_timeout_s(settings: Settings, role: str) -> float | None:
    """Return the lock timeout of this role.

    Callers of all orgs share the threads of an acquire worker, so none of them may wait long for a
    locked row.
    """
    return settings.pool.call_timeout_s / LOCK_PART if role == ACQUIRE else None


def open_redis(settings: Settings) -> Redis:
    """Return a Redis client with a timeout on every call. It connects at first use."""
    return connecting.connect(
        config.broker_url(settings), socket_timeout=_REDIS_TIMEOUT_S, socket_connect_timeout=_REDIS_TIMEOUT_S
    )


def build_driver(
    settings: Settings,
    metrics: Metrics | None = None,
    forbidden: Callable[[str, str], None] | None = None,
    watched: Threads | None = None,
) -> Driver:
    """Return the driver that the settings name.

    `forbidden` is called with every verb and resource that the cluster forbids.
    """
    if settings.pool.driver == "kubernetes":
        metrics = metrics or Metrics()
        watched = watched or Threads(SystemClock(), metrics.thread_restarted)
        return _kubernetes_driver(settings, metrics, forbidden or _ignore, watched)
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
    """Return an inspector of the cluster, for the doctor.

    `Refused` if there is no access to a cluster; makes no call yet.
    """
    from pool.drivers.kubernetes.inspecting import Inspector

    api = _kubernetes_api(settings, Metrics(), _ignore, connections=1)
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
        # Nodes, and objects that only the doctor reads, may be unreadable; everything else works
        # without them.
        if code == _FORBIDDEN and isinstance(asked, Right) and not asked.of_the_cluster:
            forbidden(asked.verb, asked.resource)

    # Create the series now. Prometheus sees no increase in a counter that first appears with its
    # first refusal, so an alert would not fire.
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


def _ignore(_verb: str, _resource: str) -> None:
    pass


def seed(settings: Settings, store: Store) -> None:
    """Create the orgs of the configuration that do not exist in the table."""
    with store.write() as tx:
        for name, defaults in settings.orgs.items():
            orgs.seed(tx, OrgId(name), defaults)
