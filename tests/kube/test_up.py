"""`warmpool up --driver kubernetes`: the control plane on this machine, the pods in a cluster, with
the driver's Role.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pool.drivers.kubernetes.rights import Right
from tests.kube.test_preflight import user_without
from tests.support.fault_proxy import FaultProxy
from tests.support.hollow_kubelet import HollowKubelet
from tests.support.kube_any import Cluster
from tests.support.kube_ground import KubeGround
from tests.support.leftovers import processes_about
from tests.support.system import ROOT
from tests.support.up import USE, Up
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def ground(cluster: Cluster, kubelet: HollowKubelet, namespace: str) -> Iterator[KubeGround]:
    with FaultProxy(cluster.access) as proxy:
        yield KubeGround(cluster, kubelet, namespace, proxy)


@pytest.fixture
def up(ground: KubeGround, tmp_path: Path) -> Iterator[Up]:
    where = ("--kubeconfig", str(ground.user.kubeconfig), "--namespace", ground.namespace)
    made = Up(tmp_path, "--driver", "kubernetes", *where, "--no-flower")
    try:
        yield made
    finally:
        made.end()


def uids(ground: KubeGround) -> dict[str, str]:
    with closing(ground.driver()) as driver:
        return {pod.name: pod.uid for pod in driver.list().pods if not pod.terminating}


def test_ctrl_c_keeps_the_pods_and_the_next_run_adopts_and_on_request_deletes_them(
    up: Up, ground: KubeGround
) -> None:
    up.start()
    assert re.search(rf"^  cluster  https://\S+, namespace {ground.namespace}$", up.said(), re.MULTILINE)
    first = json.loads(
        up.command("acquire", "--org", "acme", "--wait", "30", "--", sys.executable, "-c", USE)
    )
    held = json.loads(up.command("acquire", "--org", "held", "--wait", "30", "--lease", "3600", "--json"))
    eventually(lambda: len(uids(ground)) >= 4, within_s=60, every_s=0.2)
    eventually(
        lambda: (
            json.loads(up.command("status", "--json", ok=(0, 1)))["profiles"]["default"]["states"]["idle"]
            == 2
        ),
        within_s=60,
    )
    before = uids(ground)
    assert up.signal(signal.SIGINT) == 0
    assert re.search(r"^pods +\d remain in the cluster, 1 of them busy", up.said(), re.MULTILINE), up.said()
    assert processes_about(up.place.root) == {}
    assert uids(ground) == before

    up.start("--remove-pods")
    assert held["worker_id"] in uids(ground)
    # No pod was created in the place of the existing ones.
    kept = set(before) - {first["worker"]}
    assert kept <= set(uids(ground))
    assert json.loads(up.command("release", held["claim_id"], "--json")) == {"outcome": "released"}
    used = json.loads(
        up.command("acquire", "--org", "zenith", "--wait", "30", "--", sys.executable, "-c", USE)
    )
    assert used["worker"] in kept
    assert up.wrongs() == []
    assert up.signal(signal.SIGINT) == 0
    assert re.search(r"^pods +\d+ removed$", up.said(), re.MULTILINE), up.said()
    assert uids(ground) == {}
    with closing(ground.driver()) as driver:
        eventually(lambda: driver.companions() == (), within_s=60)
    assert up.wrongs() == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--kubeconfig", "nowhere"), 1, "add --driver kubernetes"),
        (("--driver", "kubernetes", "--kubeconfig", "/there/is/none"), 1, "/there/is/none"),
        (("--driver", "podman"), 2, "it must be local or kubernetes"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line_and_nothing_is_started(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    assert refused(tmp_path, *words) == (code, said)


def test_a_forbidden_namespace_is_reported_before_anything_is_started(
    up: Up, ground: KubeGround, tmp_path: Path
) -> None:
    where = ("--kubeconfig", str(ground.user.kubeconfig), "--namespace", "kube-system")
    assert refused(tmp_path, "--driver", "kubernetes", *where) == (1, "namespace kube-system")


def test_a_missing_permission_is_named_before_anything_is_started(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    user = user_without(cluster, namespace, Right.PATCH_PODS)
    where = ("--kubeconfig", str(user.kubeconfig), "--namespace", namespace)
    assert refused(tmp_path, "--driver", "kubernetes", *where) == (
        1,
        "no permission to patch pods in namespace wp-",
    )


def refused(folder: Path, *words: str) -> tuple[int, str]:
    """Run an `up` that must not start; return its exit code, and which of our words was in its one
    line.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pool.ops.cli", "up", "--data-dir", str(folder / "data"), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    [line] = (done.stdout + done.stderr).strip().splitlines()
    wanted = (
        "add --driver kubernetes",
        "/there/is/none",
        "namespace kube-system",
        "it must be local or kubernetes",
        "no permission to patch pods in namespace wp-",
    )
    return done.returncode, next(word for word in wanted if word in line)
