"""The connection budget: how many database connections a process of each role opens at most.

No transaction of the pool spans a call to another system. Therefore the threads of a process share few
connections.
"""

from __future__ import annotations

from collections.abc import Mapping

from pool.core.names import ACQUIRE, BIND, FLEET, PASSES
from pool.core.settings import PoolSettings

BOARD, EXPORTER = "board", "exporter"
BOARD_CONNECTIONS, EXPORTER_CONNECTIONS = 3, 2
# The lane's own connection, and that of the liveness check.
_LANE = _LIVENESS = 1
# Replicas of each worker in the chart, while a rollout adds one.
_REPLICAS, _SURGE = 2, 1


def shared_by_threads(pool: PoolSettings, role: str) -> int:
    """Return the connections that the threads of a process share."""
    if role == ACQUIRE:
        # Each thread may wait for a row that another call has locked; one more is for the rest.
        return max(pool.database_connections, pool.acquire_threads + 1)
    return {BOARD: BOARD_CONNECTIONS, EXPORTER: EXPORTER_CONNECTIONS}.get(role, pool.database_connections)


def most(pool: PoolSettings) -> dict[str, int]:
    """Return the maximum number of connections of one process, by role."""
    workers = {role: shared_by_threads(pool, role) + _LIVENESS for role in (ACQUIRE, FLEET, BIND, PASSES)}
    workers[ACQUIRE] += _LANE
    return {**workers, **{role: shared_by_threads(pool, role) for role in (BOARD, EXPORTER)}}


def of_a_rollout(pool: PoolSettings, replicas: Mapping[str, int] | None = None) -> int:
    """Return the maximum of all processes while a rollout adds one of each role. The default is two
    of each worker, one board and one exporter.
    """
    count = replicas or {role: 1 if role in {BOARD, EXPORTER} else _REPLICAS for role in most(pool)}
    return sum(each * (count.get(role, 0) + _SURGE) for role, each in most(pool).items() if count.get(role))
