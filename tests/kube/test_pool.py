"""The whole pool keeps its contract on a real API server with the driver's Role: none of its calls
is forbidden, and it makes no call outside the Role.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pool.drivers.kubernetes.rights import DoctorRight
from tests.contracts.pool import PoolContract, deployment, driver, folder, pool, system
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_cluster import KubeCluster
from tests.support.kube_ground import KubeGround, rules

__all__ = ["deployment", "driver", "folder", "pool", "system"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ground(cluster: Cluster, kubelet: HollowKubelet) -> Iterator[KubeGround]:
    with FaultProxy(cluster.access) as proxy:
        made = KubeGround(cluster, kubelet, cluster.namespace("pool"), proxy)
        since = cluster.mark() if isinstance(cluster, KubeCluster) else 0
        yield made
        cluster.api.call("DELETE", made.path("pods"), {"gracePeriodSeconds": 0})
    if isinstance(cluster, KubeCluster):
        asked = [r for r in cluster.requests(since) if r.user == made.user.name]
        assert asked
        assert [r for r in asked if r.code == 403] == []
        granted = {
            (v, r)
            for rule in rules("Role") + rules("ClusterRole")
            for r in rule["resources"]
            for v in rule["verbs"]
        }
        review = (DoctorRight.REVIEW_OUR_ACCESS.verb, DoctorRight.REVIEW_OUR_ACCESS.resource)
        # Every user may see which kinds of objects the server has.
        discovery = [r for r in asked if not r.resource]
        assert all(r.verb == "get" and r.path.startswith("/apis/") for r in discovery)
        assert {(r.verb, r.resource) for r in asked if r.resource} <= granted | {review}, (
            "what everybody may ask is no right of ours"
        )


class TestPoolOnKubernetes(PoolContract):
    """The contract, unchanged."""
