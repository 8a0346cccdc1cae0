"""A real Kubernetes API server for the whole session, with its controllers, its scheduler, and a
node that really runs pods.

KUBECONFIG names a cluster to use instead; tests that need their own cluster are then skipped.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kube_binaries
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_cluster import ClusterPart, KubeCluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Build the servers now if necessary: that takes longer than a test may. Without them all tests
    here are skipped locally.
    """
    ours = [item for item in items if HERE in item.path.parents]
    if not ours or config.option.collectonly or os.environ.get("KUBECONFIG"):
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            kube_binaries.find_or_build(kube_binaries.say_on_stderr, kube_binaries.NAMES)
    except kube_binaries.Missing as exc:
        if os.environ.get("CI"):
            raise pytest.UsageError(str(exc)) from exc
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=str(exc)))


@pytest.fixture(scope="session")
def servers() -> None:
    """Skip unless a cluster can be started here."""
    if os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster of its own: KUBECONFIG names one that others may use")


@pytest.fixture(scope="session")
def own_cluster(servers: None) -> Iterator[KubeCluster]:
    """A cluster whose audit log can be read; tests share it, so they must not kill it."""
    with KubeCluster(ClusterPart.CONTROLLERS, ClusterPart.SCHEDULER) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Any cluster with controllers and a scheduler."""
    if os.environ.get("KUBECONFIG"):
        with Cluster.of_kubeconfig() as found:
            yield found
    else:
        yield request.getfixturevalue("own_cluster")


@pytest.fixture(scope="session")
def kubelet(cluster: Cluster) -> Iterator[HollowKubelet]:
    """A node that runs pods as processes of this machine."""
    name = f"hollow-{secrets.token_hex(2)}"
    with HollowKubelet(cluster, node=name) as kubelet:
        yield kubelet


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test, under the restricted standard of pod security; its pods end with
    the test.
    """
    made = cluster.namespace("test")
    yield made
    cluster.api.call("DELETE", f"/api/v1/namespaces/{made}/pods", {"gracePeriodSeconds": 0})
