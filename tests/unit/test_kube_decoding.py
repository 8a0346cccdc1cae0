"""Decoding of the API server's objects, and the cache."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from pool.core.clock import SystemClock
from pool.core.errors import Transient
from pool.drivers.kubernetes import decoding
from pool.drivers.kubernetes.decoding import Known
from pool.drivers.kubernetes.nodes import Node, Taint, Toleration
from pool.drivers.kubernetes.pods import PodCache
from pool.drivers.kubernetes.throttle import Throttle
from pool.drivers.port import LABEL_ROLE, Gone, Pod, PodPhase, PodRole

READY = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


def raw(**changes: Any) -> bytes:
    """Return a pod as the API server sends it."""
    meta = {
        "name": "w-one",
        "namespace": "x",
        "uid": "u-1",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {LABEL_ROLE: "worker"},
        "managedFields": [{"manager": "x", "fieldsV1": {"f:metadata": {}}}],
        **changes.pop("meta", {}),
    }
    worker = {"name": "worker", "image": "image:1", "ports": [{"containerPort": 8080, "protocol": "TCP"}]}
    spec = {"nodeName": "node-1", "containers": [worker], **changes.pop("spec", {})}
    status = {
        "phase": "Running",
        "podIP": "10.0.0.7",
        "conditions": READY,
        "containerStatuses": [{"name": "worker", "state": changes.pop("state", RUNNING), "restartCount": 0}],
        **changes.pop("status", {}),
    }
    assert not changes
    return json.dumps({"kind": "Pod", "metadata": meta, "spec": spec, "status": status}).encode()


def pod(**changes: Any) -> Pod:
    return decoding.pod(raw(**changes)).pod


def test_a_ready_pod_can_be_used_at_its_address() -> None:
    seen = pod()
    assert seen.usable
    assert (seen.name, seen.uid, seen.version) == ("w-one", "u-1", "7")
    assert (seen.endpoint, seen.node, seen.image) == ("http://10.0.0.7:8080", "node-1", "image:1")
    assert (seen.trouble, seen.exit_code, seen.leaving) == ("", None, "")
    assert seen.role == PodRole.WORKER


def test_an_ipv6_address_is_in_brackets() -> None:
    assert pod(status={"podIP": "fd00::7"}).endpoint == "http://[fd00::7]:8080"


def test_a_new_pod_is_pending_without_trouble() -> None:
    seen = pod(status={"phase": "Pending", "conditions": [], "containerStatuses": [], "podIP": ""})
    assert (seen.phase, seen.ready, seen.trouble, seen.endpoint) == (PodPhase.PENDING, False, "", "")
    seen = pod(state={"waiting": {"reason": "ContainerCreating"}}, status={"phase": "Pending"})
    assert (seen.phase, seen.trouble) == (PodPhase.PENDING, "")


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"])
def test_a_container_that_cannot_start_reports_the_cause(reason: str) -> None:
    seen = pod(state={"waiting": {"reason": reason, "message": "no such thing"}}, status={"phase": "Pending"})
    assert seen.phase is PodPhase.PENDING
    assert seen.trouble == f"{reason}: no such thing"


def test_a_pod_without_a_node_reports_that_it_is_unschedulable() -> None:
    nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    seen = pod(
        spec={"nodeName": ""}, status={"phase": "Pending", "conditions": [nowhere], "containerStatuses": []}
    )
    assert seen.unschedulable
    assert seen.trouble == "Unschedulable: 0/3 nodes"


def test_a_container_killed_for_memory_reports_it() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    seen = pod(state=ended, status={"phase": "Failed", "conditions": []})
    assert (seen.phase, seen.ready, seen.exit_code) == (PodPhase.ENDED, False, 137)
    assert seen.trouble == "OOMKilled"


def test_an_ended_container_ends_the_pod_before_its_phase_changes() -> None:
    assert pod(state={"terminated": {"exitCode": 0, "reason": "Completed"}}).phase is PodPhase.ENDED


def test_a_pod_ended_by_its_node_reports_the_cause() -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "low on disk", "containerStatuses": []}
    seen = pod(status=evicted)
    assert (seen.phase, seen.trouble, seen.exit_code) == (PodPhase.ENDED, "Evicted: low on disk", None)


def test_an_ended_pod_always_has_a_cause() -> None:
    assert pod(status={"phase": "Succeeded", "containerStatuses": []}).trouble == "ended"


def test_a_pod_with_a_deletion_time_is_terminating() -> None:
    seen = pod(meta={"deletionTimestamp": "2026-01-01T00:00:05Z"})
    assert seen.terminating
    assert not seen.usable


def test_a_pod_that_was_chosen_for_disruption_is_leaving() -> None:
    chosen = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "x"}
    seen = pod(status={"conditions": [*READY, chosen]})
    assert seen.leaving == "chosen for disruption: EvictionByEvictionAPI: x"
    assert not seen.usable
    assert not seen.terminating


def test_a_page_has_its_version_and_the_token_of_the_next_page() -> None:
    body = b'{"metadata":{"resourceVersion":"9","continue":"more"},"items":[%s]}' % raw()
    page = decoding.pods(body)
    assert ([k.pod.name for k in page.items], page.version, page.more) == (["w-one"], "9", "more")


def test_null_lists_of_older_servers_are_accepted() -> None:
    bookmark = b'{"metadata":{"resourceVersion":"9","creationTimestamp":null},"spec":{"containers":null},"status":{}}'
    assert decoding.meta(bookmark).resource_version == "9"
    assert decoding.pod(bookmark).pod.image == ""
    assert decoding.pods(b'{"metadata":{"resourceVersion":"9"},"items":null}').items == []


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b'{"metadata":{"name":3}}', b'{"metadata":null}'])
def test_an_invalid_response_is_transient(body: bytes) -> None:
    with pytest.raises(Transient):
        decoding.pod(body)


@pytest.mark.parametrize("body", [b"", b"bad gateway", b"\xff", b"[]"])
def test_a_failure_without_a_message_is_still_reported(body: bytes) -> None:
    assert isinstance(decoding.status(body).message, str)


def a_node(**spec: Any) -> Node:
    return decoding.node(json.dumps({"metadata": {"name": "node-1"}, "spec": spec}).encode())


DEFAULTS = (
    Toleration(
        key="node.kubernetes.io/not-ready", operator="Exists", effect="NoExecute", toleration_seconds=300
    ),
)
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}
DEDICATED = {"key": "dedicated", "value": "workers", "effect": "NoExecute"}


@pytest.mark.parametrize(
    ("spec", "tolerations", "leaving"),
    [
        ({}, (), ""),
        ({"unschedulable": True}, (), "its node node-1 is cordoned"),
        ({"taints": [{"key": "x", "effect": "NoSchedule"}]}, (), ""),
        ({"taints": [NOT_READY]}, DEFAULTS, "its node node-1 is tainted node.kubernetes.io/not-ready"),
        ({"taints": [DEDICATED]}, (), "its node node-1 is tainted dedicated"),
        ({"taints": [DEDICATED]}, (Toleration(key="dedicated", value="workers"),), ""),
        ({"taints": [DEDICATED]}, (Toleration(key="dedicated", operator="Exists"),), ""),
        ({"taints": [DEDICATED]}, (Toleration(key="dedicated", value="others"),), "its node node-1 is tainted dedicated"),
        (
            {"taints": [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]},
            (),
            "its node node-1 is tainted karpenter.sh/disrupted",
        ),
    ],
)  # fmt: skip
def test_a_node_that_leaves_is_recognized(
    spec: dict[str, Any], tolerations: tuple[Toleration, ...], leaving: str
) -> None:
    assert a_node(**spec).leaving(tolerations) == leaving


# The cache


@pytest.fixture
def cache() -> PodCache:
    return PodCache(lambda created_s: 5.0)


def known(name: str = "w-one", uid: str = "u-1", version: str = "1") -> Known:
    return decoding.pod(raw(meta={"name": name, "uid": uid, "resourceVersion": version}))


def test_a_listener_first_gets_all_existing_pods(cache: PodCache) -> None:
    cache.replace([known()])
    with cache.listening() as news:
        (told,) = news.take(0)
        assert isinstance(told, Pod)
        assert (told.name, told.age_s) == ("w-one", 5.0)
        assert news.take(0) == []


def test_a_list_reports_new_changed_and_deleted_pods(cache: PodCache) -> None:
    cache.replace([known("w-a", "u-a"), known("w-b", "u-b"), known("w-c", "u-c")])
    with cache.listening() as news:
        news.take(0)
        cache.replace([known("w-a", "u-a"), known("w-b", "u-b", version="2"), known("w-c", "u-other")])
        told = news.take(0)
    assert Gone(name="w-c", uid="u-c") in told
    assert [p.uid for p in told if isinstance(p, Pod)] == ["u-b", "u-other"]


def test_a_slow_listener_gets_the_newest_version_of_each_pod_once(cache: PodCache) -> None:
    with cache.listening() as news:
        for version in range(1, 100):
            cache.put(known(version=str(version)))
        (told,) = news.take(0)
        assert isinstance(told, Pod)
        assert told.version == "99"
        cache.put(known(version="100"))
        cache.drop(known())
        assert news.take(0) == [Gone(name="w-one", uid="u-1")]


def test_the_deletion_of_an_earlier_pod_does_not_hide_the_new_pod_of_that_name(cache: PodCache) -> None:
    cache.put(known(uid="u-1"))
    cache.put(known(uid="u-2"))
    cache.drop(known(uid="u-1"))
    assert [p.uid for p in cache.pods()] == ["u-2"]


def test_pods_of_a_cordoned_node_are_leaving_until_it_is_uncordoned(cache: PodCache) -> None:
    cache.replace([known()])
    with cache.listening() as news:
        news.take(0)
        cache.on_nodes.replace([Node(name="node-1"), Node(name="node-2", cordoned=True)])
        assert news.take(0) == []
        cache.on_nodes.put(Node(name="node-1", cordoned=True))
        (told,) = news.take(0)
        assert isinstance(told, Pod)
        assert told.leaving == "its node node-1 is cordoned"
        assert not cache.pods()[0].usable
        cache.on_nodes.put(Node(name="node-1", cordoned=True, taints=(Taint(key="x"),)))
        assert news.take(0) == []
        cache.on_nodes.put(Node(name="node-1"))
        (told,) = news.take(0)
        assert isinstance(told, Pod)
        assert told.usable


def test_a_change_wakes_a_waiting_listener(cache: PodCache) -> None:
    with cache.listening() as news:
        teller = threading.Timer(0.05, lambda: cache.put(known()))
        teller.start()
        assert len(news.take(5)) == 1
        teller.join()


# The throttle


class HandClock(SystemClock):
    """Time that passes only while a caller waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        self.now += seconds
        return stop.is_set()


def test_a_burst_is_sent_at_once_and_the_rest_at_the_rate() -> None:
    clock = HandClock()
    throttle = Throttle(qps=10, burst=5, clock=clock)
    for _ in range(5):
        throttle.take(give_up_at=200, stop=threading.Event())
    assert clock.now == 100.0
    for _ in range(10):
        throttle.take(give_up_at=200, stop=threading.Event())
    assert clock.now == pytest.approx(101.0)


def test_a_call_that_would_wait_too_long_fails_at_once() -> None:
    clock = HandClock()
    throttle = Throttle(qps=1, burst=1, clock=clock)
    throttle.take(give_up_at=101, stop=threading.Event())
    with pytest.raises(Transient):
        throttle.take(give_up_at=100.5, stop=threading.Event())
    assert clock.now == 100.0
