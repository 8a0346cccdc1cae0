"""Cluster objects around pods: selectors, budgets, durations, nodes that can run a worker."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from pool.core.settings import Profile
from pool.drivers.kubernetes import cluster_policies
from pool.drivers.kubernetes.cluster_policies import Budget, NodePool, Selector
from pool.drivers.kubernetes.rights import DoctorRight, Need, Right

BUSY = {"warmpool.dev/busy": "true", "app": "w"}


def selector(**given: Any) -> Selector:
    return msgspec.convert(given, Selector)


def expression(operator: str, *values: str, key: str = "app") -> Selector:
    return selector(matchExpressions=[{"key": key, "operator": operator, "values": list(values)}])


@pytest.mark.parametrize(
    ("meant", "selects"),
    [
        (selector(), True),
        (selector(matchLabels={"warmpool.dev/busy": "true"}), True),
        (selector(matchLabels={"warmpool.dev/busy": "false"}), False),
        (selector(matchLabels={"other": "true"}), False),
        (expression("In", "w", "v"), True),
        (expression("In", "v"), False),
        (expression("NotIn", "v"), True),
        (expression("NotIn", "w"), False),
        (expression("NotIn", "w", key="other"), True),
        (expression("Exists"), True),
        (expression("Exists", key="other"), False),
        (expression("DoesNotExist"), False),
        (expression("DoesNotExist", key="other"), True),
    ],
)
def test_a_selector_is_matched_as_in_kubernetes(meant: Selector, selects: bool) -> None:
    assert meant.selects(BUSY) is selects


def budget(**spec: Any) -> Budget:
    return msgspec.convert({"metadata": {"name": "b"}, "spec": {"selector": {}, **spec}}, Budget)


@pytest.mark.parametrize(
    ("spec", "spares"),
    [
        ({"minAvailable": 2_147_483_647}, True),
        ({"minAvailable": 1}, False),
        ({"minAvailable": "100%"}, False),
        ({"maxUnavailable": 0}, False),
        ({}, False),
    ],
)
def test_only_a_min_available_above_any_pool_size_protects_all_pods(
    spec: dict[str, Any], spares: bool
) -> None:
    assert budget(**spec).spares_all is spares


def test_a_budget_without_a_selector_selects_nothing() -> None:
    assert not budget(selector=None).selects(BUSY)
    assert budget().selects(BUSY)


@pytest.mark.parametrize(
    ("text", "is_s"),
    [
        ("1h", 3600),
        ("1h30m", 5400),
        ("720h0m0s", 2_592_000),
        ("90s", 90),
        ("1m500ms", 60.5),
        ("1.5h", 5400),
        ("", None),
    ],
)
def test_a_duration_is_read_as_go_writes_it(text: str, is_s: float | None) -> None:
    assert cluster_policies.seconds(text) == is_s


def nodepool(*taints: dict[str, str], **labels: str) -> NodePool:
    template = {"metadata": {"labels": labels}, "spec": {"terminationGracePeriod": "1h", "taints": taints}}
    listed = {"items": [{"metadata": {"name": "np"}, "spec": {"template": template}}]}
    found = cluster_policies.NODEPOOLS.decode(json.dumps(listed)).items
    assert found is not None
    return found[0]


SHUT = {"key": "workers", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("pool", "profile", "may"),
    [
        (nodepool(), Profile(), True),
        (nodepool(SHUT), Profile(), False),
        (nodepool(SHUT), Profile(tolerations=({"key": "workers", "operator": "Exists"},)), True),
        (nodepool({"key": "x", "effect": "PreferNoSchedule"}), Profile(), True),
        (nodepool(size="big"), Profile(node_selector={"size": "big"}), True),
        (nodepool(size="big"), Profile(node_selector={"size": "small"}), False),
        (nodepool(), Profile(node_selector={"kubernetes.io/arch": "arm64"}), True),
        (nodepool(), Profile(node_selector={"karpenter.sh/nodepool": "np"}), True),
        (nodepool(), Profile(node_selector={"karpenter.sh/nodepool": "other"}), False),
    ],
)
def test_a_node_pool_that_can_run_a_profile_is_recognized(
    pool: NodePool, profile: Profile, may: bool
) -> None:
    assert pool.may_host(profile) is may
    assert pool.ceiling_s == 3600


def test_only_the_nodes_permission_is_optional_and_the_doctor_needs_no_role() -> None:
    assert {r.resource for r in Right if r.need is Need.NODES} == {"nodes"}
    assert {r for r in Right if r.need is Need.ANCHOR} == {Right.CREATE_CONFIGMAPS}
    assert {r.resource for r in Right if r.need is Need.MUST} == {"pods", "secrets", "configmaps"}
    assert not {(x.verb, x.resource) for x in DoctorRight} & {(r.verb, r.resource) for r in Right}
