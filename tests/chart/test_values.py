"""Values: the schema has every key of values.yaml and of the settings with a description; a typo or
a contradiction ends the rendering by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import yaml

from charts import schema
from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile
from tests.support.helm import CHART, helm, template, values_file

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
EXAMPLES = sorted(p.name.removesuffix("-values.yaml") for p in (CHART / "ci").glob("*-values.yaml"))
# Set for all of them in `defaults`, and per component only where it differs.
COMPONENTS = {"acquire", "fleet", "bind", "passes", "beat", "flower", "board", "exporter"}


def tables(
    found: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every table of the schema that has keys."""
    yield path, found
    for name, inner in found.get("properties", {}).items():
        yield from tables(inner, (*path, name))
    if isinstance(found.get("additionalProperties"), dict):
        yield from tables(found["additionalProperties"], (*path, "*"))


def test_the_values_schema_matches_the_settings_and_the_chart() -> None:
    assert (CHART / "values.schema.json").read_text() == schema.as_json(), (
        "run: python -m charts.schema > charts/warmpool/values.schema.json"
    )


def test_every_key_is_documented_and_unknown_keys_are_refused() -> None:
    for path, table in tables(SCHEMA):
        if "properties" in table:
            assert table["additionalProperties"] is False, path
        if path and path[-1] != "*":
            assert table.get("description", "").strip(), path


def test_every_setting_is_a_value_or_the_charts_own() -> None:
    config = SCHEMA["properties"]["config"]["properties"]
    for cls, known, own in (
        (PoolSettings, config["pool"], schema.POOL_OF_THE_CHART),
        (KubernetesSettings, config["kubernetes"], schema.KUBERNETES_OF_THE_CHART),
        (Profile, config["profiles"]["additionalProperties"], {"name"}),
        (OrgDefaults, config["orgs"]["additionalProperties"], set()),
    ):
        assert {f.name for f in fields(cls)} - set(own) == set(known["properties"])


def test_values_and_schema_name_the_same_keys() -> None:
    for path, table in tables(SCHEMA):
        free = len(path) > 1 and (path[0] == "config" or path[-1] == "resources")
        if "properties" not in table or free:
            continue
        given: Any = VALUES
        for name in path:
            given = given[name]
        known = set(table["properties"]) - {"global"}
        if path and path[0] in COMPONENTS and len(path) == 1:
            assert set(given) <= known, path
            known -= set(schema.component_keys())
            given = {k: v for k, v in given.items() if k not in schema.component_keys()}
        assert set(given) == known, path


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_clean(example: str) -> None:
    linted = helm("lint", "--strict", str(CHART), "-n", "pool", "-f", values_file(example))
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "[WARNING]" not in linted.stdout


@pytest.mark.parametrize(
    ("typo", "told"),
    [
        ("flowr.enabled=false", "flowr"),
        ("acquire.replica=3", "replica"),
        ("config.pool.warm_target=3", "warm_target"),
        ("config.profiles.default.warm_taget=3", "warm_taget"),
        ("config.pool.max_workers=-1", "max_workers"),
        ("config.pool.broker_url=redis://x", "broker_url"),
        ("probes.failures=many", "failures"),
    ],
)
def test_a_typo_is_refused_by_its_name(typo: str, told: str) -> None:
    done = template("trial", typo)
    assert done.returncode != 0
    assert told in done.stderr


# One rendering reports all invalid values. Each pair is a value and the expected message.
CONTRADICTIONS = {
    "redis.url=redis://x": "redis: url and bundled.enabled are mutually exclusive",
    "database.url=postgresql://x": "database: url and bundled.enabled are mutually exclusive",
    "masterKey.value=short": "masterKey.value: must be at least 32 characters long",
    "config.pool.signed_requests=false": "config.pool.queue_per_org: requires config.pool.signed_requests",
    "config.pool.queue_per_org=true": "config.pool.queue_per_org: requires config.pool.signed_requests",
    "masterKey.nextSecret.name=a": "masterKey: nextSecret and previousSecret are two steps",
    "masterKey.previousSecret.name=b": "masterKey: nextSecret and previousSecret are two steps",
    "config.pool.visibility_timeout_s=80": "config.pool.visibility_timeout_s: 80 is below the minimum of 100",
    "bind.terminationGracePeriodSeconds=30": "bind.terminationGracePeriodSeconds: 30 is below the minimum of 55",
    "workers.nodeTerminationGracePeriodSeconds=600": "config.profiles.default.grace_s: 600 must be less than",
    "flower.auth.user=": "flower.auth: Flower has no login",
    "workers.namespace=pool": "workers.createNamespace: must be false, because",
    "test.profile=gpu": "test.profile: config.profiles.gpu does not exist",
    "keda.enabled=true": "keda.prometheusAddress: keda.enabled requires it",
    "image.digest=sha256:" + 64 * "0": "image: tag and digest are mutually exclusive",
    "priorityClasses.worker.value=1000": "priorityClasses.controlPlane.value: 1000 must be greater than",
    "redis.bundled.resources.limits.memory=1.5Gi": "redis.bundled.resources.limits.memory: must be a whole number",
    "redis.bundled.aclLines={user control on nopass +@all}": "redis.bundled.aclLines: user control is reserved",
    "image.tag=v1": "image: tag and digest are mutually exclusive",
}


def test_all_contradictions_between_values_are_reported_at_once_by_name() -> None:
    done = template("trial", *CONTRADICTIONS)
    assert done.returncode != 0
    for sentence in CONTRADICTIONS.values():
        assert sentence in done.stderr


# Values that cannot be combined with the others.
ALONE = [
    (("redis.bundled.enabled=false",), "redis: not configured; set redis.existingSecret.name or redis.url"),
    (
        ("redis.url=valkey://x",),
        "redis.url: must begin with redis://, rediss://, sentinel:// or sentinels://",
    ),
    (("database.url=sqlite:///x",), "database.url: must begin with postgresql://"),
    (
        ("masterKey.value=0123456789abcdef0123456789abcdef", "masterKey.existingSecret.name=a"),
        "masterKey: value and existingSecret",
    ),
    (
        ("flower.auth.password=a", "flower.auth.existingSecret.name=b"),
        "flower.auth: password and existingSecret",
    ),
    (
        ("board.auth.password=a", "board.auth.existingSecret.name=b"),
        "board.auth: password and existingSecret",
    ),
    (("board.sso.userHeader=X-User",), "board.sso.userHeader: requires board.trustedProxies"),
    (("board.sso.groupsHeader=X-Groups",), "board.sso: groupsHeader, operators and operatorGroups require"),
    (
        ("board.sso.userHeader=X-User", "board.sso.operatorGroups[0]=a", "board.trustedProxies[0]=10.0.0.1"),
        "board.sso.operatorGroups: requires board.sso.groupsHeader",
    ),
    (
        ("config.profiles.default.headroom=1", "priorityClasses.placeholder.create=false"),
        "priorityClasses.placeholder.name: config.profiles.default.headroom",
    ),
    (
        ("keda.enabled=true", "keda.minReplicas=3", "keda.maxReplicas=2"),
        "keda.maxReplicas: must not be less than",
    ),
    (("exporter.enabled=false", "monitoring.serviceMonitor.enabled=true"), "there is nothing to scrape"),
    (("config.orgsAutoCreate=false", "test.org=absent"), "test.org: config.orgs.absent does not exist"),
]


def test_every_error_text_has_a_test_case() -> None:
    text = (CHART / "templates" / "check-values.yaml").read_text()
    sentences = re.findall(r'append \$wrong (?:\(printf )?"([^"]+)"', text)
    assert len(sentences) == text.count("append $wrong")
    told = [template("trial", *given).stderr for given in (CONTRADICTIONS, *(given for given, _ in ALONE))]
    for sentence in sentences:
        pattern = re.sub("%[sd]", ".+", re.escape(sentence))
        assert any(re.search(f"- {pattern}", each) for each in told), f"nothing makes it say: {sentence}"


@pytest.mark.parametrize(("given", "told"), ALONE)
def test_a_contradiction_is_refused_by_its_name(given: tuple[str, ...], told: str) -> None:
    done = template("trial", *given)
    assert done.returncode != 0
    assert told in done.stderr
