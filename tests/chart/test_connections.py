"""The connection budget: what the chart runs by default fits a Postgres with its default
`max_connections`, also while a rollout adds a pod to each component.
"""

from __future__ import annotations

from pool.core import connections
from pool.core.settings import PoolSettings
from tests.support.helm import rendered

# The default of Postgres, and what it keeps for superusers.
MAX_CONNECTIONS, RESERVED = 100, 3
WITHOUT_DATABASE = {"beat", "flower"}


def test_the_charts_processes_fit_the_default_of_postgres() -> None:
    components = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: each["spec"]
        for each in rendered("external")
        if each["kind"] == "Deployment"
    }
    replicas = {name: spec["replicas"] for name, spec in components.items() if name not in WITHOUT_DATABASE}
    assert set(replicas) == set(connections.most(PoolSettings()))
    surges = {spec["strategy"]["rollingUpdate"]["maxSurge"] for spec in components.values()}
    assert surges == {1}
    needed = connections.of_a_rollout(PoolSettings(), replicas)
    assert needed == connections.of_a_rollout(PoolSettings())
    assert needed <= MAX_CONNECTIONS - RESERVED
