"""The passes keep their contract on a real API server, with the driver's own least-privilege Role."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contracts.passes import PassesContract, scene
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_ground import KubeGround

__all__ = ["scene"]


@pytest.fixture
def ground(cluster: Cluster, kubelet: HollowKubelet, namespace: str) -> Iterator[KubeGround]:
    with FaultProxy(cluster.access) as proxy:
        yield KubeGround(cluster, kubelet, namespace, proxy)


class TestPassesOnKubernetes(PassesContract):
    """The contract, unchanged."""
