"""Who makes way on a full node: placeholders for workers, and the control plane for nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.kube_api import Object
from tests.support.node_release import ChartRelease, is_lasting, is_ready
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not os.environ.get("WARMPOOL_TEST_LONG"), reason="WARMPOOL_TEST_LONG=1 selects it"),
]

# Of the 2000 millicores of two cores the control plane requests 525.
WARM, WORKER, PLACEHOLDER = 3, 200, 500
PLACEHOLDERS = "warmpool.dev/role=placeholder"
_PROFILE = "config.profiles.default"


@pytest.fixture(scope="module")
def full(release: ChartRelease) -> Iterator[ChartRelease]:
    """A node with workers and one placeholder, that has room for one more worker at most."""
    release.wait_ready()
    release.upgrade(
        f"{_PROFILE}.cpu_millicores={WORKER}", "config.pool.surplus_ttl_s=1", f"{_PROFILE}.headroom=1",
        f"{_PROFILE}.headroom_cpu_millicores={PLACEHOLDER}", f"{_PROFILE}.headroom_memory_mib=16",
    )  # fmt: skip
    eventually(lambda: len(with_size(release)) == WARM, within_s=180, every_s=0.5)
    eventually(lambda: placeholders(release), within_s=120, every_s=0.5)
    yield release
    set_warm(release, WARM)
    release.upgrade()
    eventually(lambda: not release.worker_pods(PLACEHOLDERS), within_s=120, every_s=0.5)


def test_workers_preempt_placeholders(full: ChartRelease) -> None:
    before = placeholders(full)
    set_warm(full, WARM + 2)
    eventually(lambda: len(with_size(full)) == WARM + 2, within_s=240, every_s=0.5)
    assert not set(before) & set(placeholders(full))


def test_workers_never_preempt_the_control_plane_on_a_full_node(full: ChartRelease) -> None:
    before = {p["metadata"]["uid"] for p in full.pods() if is_lasting(p)}
    set_warm(full, WARM + 10)
    eventually(lambda: without_room(full), within_s=240, every_s=0.5)
    # The scheduler decided about them; a pod that it preempts has this condition at once.
    assert [p["metadata"]["name"] for p in full.pods() if condition(p, "DisruptionTarget")] == []
    assert {p["metadata"]["uid"] for p in full.pods() if is_lasting(p)} == before


def test_a_control_plane_pod_that_is_deleted_on_a_full_node_runs_again(full: ChartRelease) -> None:
    """Pods that wait are scheduled by priority, so the room of the deleted pod is not a worker's."""
    set_warm(full, WARM + 10)
    eventually(lambda: without_room(full), within_s=240, every_s=0.5)
    pod = full.pods("board")[0]["metadata"]
    full.node.api.delete(f"/api/v1/namespaces/{full.namespace}/pods/{pod['name']}")
    full.wait_ready("board")


def with_size(release: ChartRelease) -> list[Object]:
    """Return the ready workers of the size that this module sets."""
    pods = [p for p in release.worker_pods() if is_ready(p)]
    return [p for p in pods if p["spec"]["containers"][0]["resources"]["requests"]["cpu"] == f"{WORKER}m"]


def placeholders(release: ChartRelease) -> list[str]:
    return [p["metadata"]["uid"] for p in release.worker_pods(PLACEHOLDERS) if is_ready(p)]


def without_room(release: ChartRelease) -> list[Object]:
    """Return the workers that the scheduler found no place for."""
    found = [condition(p, "PodScheduled") for p in release.worker_pods()]
    return [c for c in found if c and c["status"] == "False" and c["reason"] == "Unschedulable"]


def condition(pod: Object, kind: str) -> Object | None:
    found = [c for c in pod["status"].get("conditions", []) if c["type"] == kind]
    return found[0] if found else None


def set_warm(release: ChartRelease, count: int) -> None:
    release.run("warmpool", "profile", "set-warm", "default", str(count))
