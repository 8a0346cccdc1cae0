"""The objects of the chart: restricted pods, exactly the driver's permissions, secrets only for
their users, budgets and policies.
"""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import yaml
from typer.main import get_command

from pool.config.parsing import parse
from pool.drivers.port import LABEL_BUSY, LABEL_POOL, LABEL_ROLE, PodRole, Stamp
from pool.ops.cli.board import app as board_app
from tests.chart.test_values import COMPONENTS, EXAMPLES
from tests.support.helm import CHART, Object, named, of_kind, pod_templates, rendered
from tests.support.kube_ground import ROLES

WITH_TOKEN = {"fleet", "bind", "passes"}


def containers(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def component(found: Object) -> str:
    return str(found["metadata"]["labels"]["app.kubernetes.io/component"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_pod_is_restricted_with_a_read_only_root_and_an_account_of_its_own(example: str) -> None:
    objects = rendered(example)
    accounts = set()
    for name, pod in pod_templates(objects):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["automountServiceAccountToken"] is (component(pod) in WITH_TOKEN), name
        if component(pod) != "test":
            assert spec["serviceAccountName"] not in accounts, "shared"
            accounts.add(spec["serviceAccountName"])
        for container in containers(pod):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"], name
            assert container["resources"]["limits"], name
    made = {a["metadata"]["name"] for a in of_kind(objects, "ServiceAccount")}
    assert accounts == made
    assert all(a["automountServiceAccountToken"] is False for a in of_kind(objects, "ServiceAccount"))


def rules_of(objects: Any, kind: str) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return (verb, resource, names) of all roles of a kind."""
    return {
        (verb, resource, tuple(rule.get("resourceNames", ())))
        for role in of_kind(objects, kind)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("example", "accounts", "nodes"),
    [("external", False, True), ("full", True, True), ("smallest", False, False)],
)
def test_the_chart_grants_exactly_the_permissions_of_the_driver(
    example: str, accounts: bool, nodes: bool
) -> None:
    """Without the permission to create the anchor, which the chart creates."""
    roles = {r["metadata"]["name"]: r for r in yaml.safe_load_all(ROLES.read_text())}
    granted = {"warmpool"} | ({"warmpool-accounts"} if accounts else set())
    wanted = rules_of([r for n, r in roles.items() if n in granted], "Role")
    objects = rendered(example)
    anchor = next(
        o["metadata"]["name"]
        for o in of_kind(objects, "ConfigMap")
        if o["metadata"]["name"].endswith("-anchor")
    )
    renamed = {(v, r, (anchor,) if names else ()) for v, r, names in wanted}
    assert rules_of(objects, "Role") == renamed
    nodes_wanted = rules_of([roles["warmpool-nodes"]], "ClusterRole") if nodes else set()
    assert rules_of(objects, "ClusterRole") == nodes_wanted
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert subjects(binding) == WITH_TOKEN


def subjects(binding: Object) -> set[str]:
    return {s["name"].rpartition("-")[2] for s in binding["subjects"]}


def test_one_value_lets_the_pass_workers_list_nodepools_and_nothing_else() -> None:
    without, granted = rendered("smallest"), rendered("smallest", "rbac.nodepools=true")
    assert of_kind(without, "ClusterRole", "ClusterRoleBinding") == []
    [role], [binding] = of_kind(granted, "ClusterRole"), of_kind(granted, "ClusterRoleBinding")
    assert role["rules"] == [{"apiGroups": ["karpenter.sh"], "resources": ["nodepools"], "verbs": ["list"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert subjects(binding) == {"passes"}
    assert rules_of(granted, "Role") == rules_of(without, "Role")


def test_each_component_gets_the_secrets_that_it_uses_and_no_other() -> None:
    seen = {}
    for _, pod in pod_templates(rendered("trial")):
        if component(pod) in {"redis", "postgres"}:
            continue
        refs = [
            e["valueFrom"]["secretKeyRef"]["key"]
            for c in pod["spec"]["containers"]
            for e in c["env"]
            if "valueFrom" in e
        ]
        seen[component(pod)] = set(refs)
    everything = {"broker-url", "database-url", "master-key"}
    assert seen == {
        **dict.fromkeys(("acquire", "fleet", "bind", "passes"), everything),
        "board": {"database-url", "board-password"},
        "exporter": {"broker-url", "database-url"},
        "beat": {"broker-url", "master-key"},
        "flower": {"flower-broker-url", "flower-basic-auth"},
        "migrate": {"database-url"},
        "test": {"producer-broker-url", "database-url", "master-key"},
    }


def test_the_boards_settings_are_options_that_the_command_takes() -> None:
    [full] = [pod for _, pod in pod_templates(rendered("full")) if component(pod) == "board"]
    options = full["spec"]["containers"][0]["command"][3:]
    assert options == [
        *("--host", "0.0.0.0", "--port", "8090", "--trusted-proxy", "10.1.0.0/16", "--secure-cookie"),
        *("--sso-user-header", "X-Auth-Request-User", "--sso-groups-header", "X-Auth-Request-Groups"),
        *("--sso-operator", "alice@acme.test", "--sso-operator-group", "sre"),
    ]
    known = {option for parameter in get_command(board_app).params for option in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


def test_an_existing_secret_is_used_everywhere_and_no_secret_is_created() -> None:
    objects = rendered("full")
    used = {
        (e["valueFrom"]["secretKeyRef"]["name"], e["valueFrom"]["secretKeyRef"]["key"])
        for _, pod in pod_templates(objects)
        for c in containers(pod)
        for e in c["env"]
        if "valueFrom" in e
    }
    assert used == {
        ("broker", "url"), ("broker", "flower"), ("broker", "producer"), ("keys", "master"),
        ("keys", "before"), ("flower-login", "flower-basic-auth"),
        ("board-login", "board-password"), ("pool", "database-url"), ("pool-migrate", "database-url"),
    }  # fmt: skip
    assert set(named(objects, "Secret", "pool")["stringData"]) == {"database-url"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_rendered_configuration_is_valid(example: str) -> None:
    for config in of_kind(rendered(example), "ConfigMap"):
        if toml := config.get("data", {}).get("warmpool.toml"):
            assert parse(toml, "warmpool.toml", {}).problems == []


def test_values_reach_the_configuration_unchanged() -> None:
    config = tomllib.loads(named(rendered("full"), "ConfigMap", "pool")["data"]["warmpool.toml"])
    given = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())["config"]
    assert config["profiles"]["gpu"] == given["profiles"]["gpu"]
    assert config["orgs"]["acme"] == given["orgs"]["acme"]
    assert {k: config["pool"][k] for k in given["pool"]} == given["pool"]
    assert config["orgs"]["auto_create"] is False


def test_the_budget_selects_exactly_the_pods_that_the_guard_stamps_as_busy() -> None:
    objects = rendered("trial")
    budget = named(objects, "PodDisruptionBudget", "wp-warmpool-busy")["spec"]
    assert (budget["minAvailable"], budget["unhealthyPodEvictionPolicy"]) == (2147483647, "AlwaysAllow")
    config = tomllib.loads(named(objects, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"])
    pool = {LABEL_POOL: config["kubernetes"]["anchor"], LABEL_ROLE: str(PodRole.WORKER)}

    def selected(*, busy: bool) -> bool:
        labels = pool | Stamp(org="o", claim_id="c", epoch=1, busy=busy).labels()
        return all(labels.get(k) == v for k, v in budget["selector"]["matchLabels"].items())

    assert (selected(busy=True), selected(busy=False)) == (True, False)
    assert budget["selector"]["matchLabels"][LABEL_BUSY] == "true"


@pytest.mark.parametrize("example", EXAMPLES)
def test_only_components_with_replicas_have_a_budget(example: str) -> None:
    objects = rendered(example)
    several = {
        d["metadata"]["name"] for d in of_kind(objects, "Deployment") if d["spec"].get("replicas", 2) > 1
    }
    budgets = {b["metadata"]["name"] for b in of_kind(objects, "PodDisruptionBudget")}
    assert {b for b in budgets if not b.endswith("-busy")} == several


def test_a_network_policy_denies_everything_and_every_pod_has_its_own_exceptions() -> None:
    objects = rendered("trial")
    policies = {p["metadata"]["name"]: p["spec"] for p in of_kind(objects, "NetworkPolicy")}
    deny = policies["wp-warmpool-deny"]
    assert (deny.get("ingress"), deny.get("egress"), deny["policyTypes"]) == (
        None,
        None,
        ["Ingress", "Egress"],
    )
    for name, pod in pod_templates(objects):
        labels = pod["metadata"]["labels"]
        covering = [
            n
            for n, p in policies.items()
            if p["podSelector"]["matchLabels"].items() <= labels.items() and n != "wp-warmpool-deny"
        ]
        assert len(covering) == 1, name
    outside = policies["wp-warmpool-workers"]["egress"][1]["to"][0]["ipBlock"]
    assert outside["cidr"] == "0.0.0.0/0"
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(outside["except"])


def test_sentinels_are_reached_through_the_network_policy() -> None:
    def ports(*sets: str) -> set[int]:
        policy = named(rendered("full", *sets), "NetworkPolicy", "pool-beat")
        return {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]} - {53}

    assert ports() == {6380}
    assert ports("networkPolicy.redis.sentinelPort=26379") == {6380, 26379}


def test_only_a_change_of_configuration_restarts_the_pods() -> None:
    def checksums(*sets: str) -> set[str]:
        return {
            d["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
            + d["spec"]["template"]["metadata"]["annotations"]["checksum/secrets"]
            for d in of_kind(rendered("trial", *sets), "Deployment")
        }

    assert len(checksums()) == 1
    assert checksums("keda.minReplicas=3") == checksums()
    assert checksums("config.pool.max_workers=7") != checksums()
    assert checksums("masterKey.value=another-master-key-of-32-characters") != checksums()


def test_priorities_are_control_plane_then_workers_then_placeholders() -> None:
    """Each pod of the control plane and of the bundled servers has its priority class; workers
    cannot preempt it.
    """
    objects = rendered("trial")
    classes = {c["metadata"]["name"]: c for c in of_kind(objects, "PriorityClass")}
    values = {name.removeprefix("pool-wp-warmpool-"): c["value"] for name, c in classes.items()}
    assert values == {"control-1000-never": 1000, "worker-0": 0, "placeholder": -10}
    assert {component(pod): pod["spec"].get("priorityClassName") for _, pod in pod_templates(objects)} == {
        **dict.fromkeys((*COMPONENTS, "redis", "postgres", "migrate"), "pool-wp-warmpool-control-1000-never"),
        "test": None,
    }
    config = tomllib.loads(named(objects, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"])
    assert config["kubernetes"]["worker_priority_class"] == "pool-wp-warmpool-worker-0"


def test_no_priority_class_preempts_pods_of_the_default_priority_unless_configured() -> None:
    for found in of_kind(rendered("trial"), "PriorityClass"):
        assert found["value"] <= 0 or found["preemptionPolicy"] == "Never", found["metadata"]["name"]
        assert found["globalDefault"] is False


def test_a_priority_class_with_another_value_or_policy_has_another_name() -> None:
    """Both are immutable in the cluster: an upgrade that changes one in place is refused."""
    sets = (
        "priorityClasses.controlPlane.value=2000",
        "priorityClasses.controlPlane.preemptionPolicy=PreemptLowerPriority",
    )
    names = {
        c["metadata"]["name"]
        for c in of_kind(rendered("trial", *sets, "priorityClasses.worker.value=5"), "PriorityClass")
    }
    assert {"pool-wp-warmpool-control-2000-preemptlowerpriority", "pool-wp-warmpool-worker-5"} < names


def test_a_migration_before_the_first_install_needs_no_class_of_the_chart() -> None:
    (job,) = of_kind(rendered("external"), "Job")
    assert "helm.sh/hook" in job["metadata"]["annotations"]
    assert "priorityClassName" not in job["spec"]["template"]["spec"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_pod_can_fill_a_nodes_disk(example: str) -> None:
    for name, pod in pod_templates(rendered(example)):
        for volume in pod["spec"].get("volumes", []):
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], (name, volume)
        for container in containers(pod):
            for amounts in ("requests", "limits"):
                assert "ephemeral-storage" in container["resources"][amounts], (name, container["name"])


@pytest.mark.parametrize(("limit", "maxmemory"), [("256Mi", 153), ("1Gi", 614), ("2Gi", 1228)])
def test_the_bundled_redis_refuses_writes_before_it_is_killed(limit: str, maxmemory: int) -> None:
    objects = rendered("trial", f"redis.bundled.resources.limits.memory={limit}")
    (container,) = named(objects, "StatefulSet", "wp-warmpool-redis")["spec"]["template"]["spec"][
        "containers"
    ]
    words = container["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--maxmemory"] == f"{maxmemory}mb"
    assert options["--maxmemory-policy"] == "noeviction"


def test_every_image_can_be_set_by_digest() -> None:
    digest = f"sha256:{64 * 'a'}"
    sets = [f"{where}.digest={digest}" for where in ("image", "redis.bundled", "database.bundled")]
    images = {c["image"] for _, pod in pod_templates(rendered("trial", *sets)) for c in containers(pod)}
    assert images == {f"{name}@{digest}" for name in ("warmpool", "valkey/valkey:8.1-alpine", "postgres:17")}


def test_a_celery_worker_has_a_grace_period_and_receives_signals_from_the_first_process() -> None:
    for deployment in of_kind(rendered("external"), "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] >= 30 + 10 + 15
        for container in containers(deployment["spec"]["template"]):
            assert container["command"][:2] == ["warmpool-init", "warmpool"]


def test_autoscalers_and_scrape_objects_are_rendered_only_when_enabled() -> None:
    kinds = {o["kind"] for o in rendered("full")}
    assert {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"} <= kinds
    scaled = {o["spec"]["scaleTargetRef"]["name"] for o in of_kind(rendered("full"), "ScaledObject")}
    unset = {
        d["metadata"]["name"] for d in of_kind(rendered("full"), "Deployment") if "replicas" not in d["spec"]
    }
    assert scaled == unset
