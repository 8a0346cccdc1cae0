"""Installing, testing, upgrading and installing again: what the rendered objects need for it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from pool.config.parsing import parse
from tests.chart.test_values import COMPONENTS
from tests.support.helm import NAMESPACE, Object, named, of_kind, pod_templates, rendered, secret_values

UNITS = {"m": 0.001, "Mi": 1.0, "Gi": 1024.0}
# A laptop's cluster with two cores has about this much left for a trial.
TRIAL_CPU, TRIAL_MIB = 1.0, 1536.0


def amount(text: str) -> float:
    """Return cores, or MiB."""
    unit = next((u for u in UNITS if text.endswith(u)), "")
    return float(text.removesuffix(unit)) * UNITS.get(unit, 1.0)


def requested(pod: Object, what: str) -> float:
    """Return what the scheduler counts: the containers together, or the largest init container."""
    spec = pod["spec"]
    inits = [amount(c["resources"]["requests"][what]) for c in spec.get("initContainers", [])]
    return max(sum(amount(c["resources"]["requests"][what]) for c in spec["containers"]), *inits, 0.0)


def test_a_trial_with_its_warm_workers_fits_a_laptop() -> None:
    objects = rendered("trial")
    running = [
        (pod, found["spec"].get("replicas", 1))
        for found in of_kind(objects, "Deployment", "StatefulSet")
        for pod in [found["spec"]["template"]]
    ]
    assert len(running) == len(COMPONENTS | {"redis", "postgres"})
    toml = named(objects, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"]
    profile = parse(toml, "warmpool.toml", {}).settings.profiles["default"]
    assert profile.warm_target == 3
    cpu = sum(n * requested(pod, "cpu") for pod, n in running) + 3 * profile.cpu_millicores / 1000
    mib = sum(n * requested(pod, "memory") for pod, n in running) + 3 * profile.memory_mib
    # While it is installed the migration runs too.
    (job,) = of_kind(objects, "Job")
    cpu += requested(job["spec"]["template"], "cpu")
    mib += requested(job["spec"]["template"], "memory")
    assert (cpu <= TRIAL_CPU, mib <= TRIAL_MIB) == (True, True), (cpu, mib)


def test_a_migration_job_with_another_spec_has_another_name() -> None:
    """A Job is immutable: one that an earlier release left behind must not be the same object."""

    def job(*sets: str) -> str:
        (found,) = of_kind(rendered("trial", *sets), "Job")
        return str(found["metadata"]["name"])

    assert job() == job("keda.minReplicas=3")
    assert (
        len({job(), job("image.tag=v2"), job("migrate.tries=3"), job("migrate.resources.requests.cpu=70m")})
        == 4
    )
    assert max(len(job("fullnameOverride=" + 60 * "x")), len(job())) <= 63


@pytest.mark.parametrize("key", ["broker-url", "flower-broker-url", "producer-broker-url", "database-url"])
def test_urls_of_bundled_servers_are_valid_in_every_namespace(key: str) -> None:
    objects = rendered("trial")
    host = urlsplit(secret_values(named(objects, "Secret", "wp-warmpool"))[key]).hostname
    services = {f"{s['metadata']['name']}.{NAMESPACE}.svc" for s in of_kind(objects, "Service")}
    assert host in services


def test_the_pod_of_helm_test_is_kept_so_that_its_log_can_be_read() -> None:
    (pod,) = of_kind(rendered("trial"), "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"


def test_a_stuck_component_is_killed_soon_and_a_healthy_one_may_finish_its_tasks() -> None:
    for found in of_kind(rendered("external"), "Deployment"):
        spec = found["spec"]["template"]["spec"]
        stuck_s = spec["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"]
        assert stuck_s <= 15 < spec["terminationGracePeriodSeconds"]


def test_every_probe_that_runs_a_command_has_several_seconds() -> None:
    """One second, the default, is too short for a new process on a busy node."""
    for name, pod in pod_templates(rendered("trial")):
        for container in pod["spec"]["containers"]:
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container.get(kind, {})
                assert "exec" not in probe or probe["timeoutSeconds"] >= 5, (name, kind)
