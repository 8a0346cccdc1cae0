"""Manifests of pods: the restricted security context, reserved labels, the order of fields."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pool.config import podrules
from pool.core.errors import InvalidInput
from pool.core.names import LABEL_PREFIX
from pool.core.settings import KubernetesSettings, Profile
from pool.drivers.kubernetes import changes, manifests
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.kubernetes.rights import Right
from pool.drivers.port import (
    LABEL_BUSY,
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_DO_NOT_DISRUPT,
    NOTE_REVISION,
    NOTE_SAFE_TO_EVICT,
    PodRole,
    PodSpec,
    Stamp,
)

PLACE = PodPlace(settings=KubernetesSettings(pull_secrets=("pull",)), anchor_uid="anchor-uid")
SPEC = PodSpec(
    name="w-one", profile="default", revision="rev-1", image="image:1", cpu_millicores=250, memory_mib=64,
    port=8080, grace_s=600, secret="00ff", env={"MODE": "fast"},
)  # fmt: skip
HELD = Stamp(org="acme", claim_id="c-1", epoch=1, busy=True)


def made(profile: Profile | None = None, place: PodPlace = PLACE, **changes: Any) -> dict[str, Any]:
    return manifests.pod(replace(SPEC, **changes), profile or Profile(), place)


def container_of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


def env_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in container_of(pod)["env"]}


@pytest.mark.parametrize("role", PodRole)
def test_every_pod_keeps_the_restricted_standard(role: PodRole) -> None:
    pod = made(role=role)
    spec, container = pod["spec"], container_of(pod)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert {"name": "warmpool-tmp", "mountPath": "/tmp"} in container["volumeMounts"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()


@pytest.mark.parametrize("role", PodRole)
def test_requests_are_limits(role: PodRole) -> None:
    resources = container_of(made(role=role))["resources"]
    size = {"cpu": "250m", "memory": "64Mi", "ephemeral-storage": "1024Mi"}
    assert resources["requests"] == resources["limits"] == size


@pytest.mark.parametrize("role", PodRole)
def test_no_worker_can_fill_its_nodes_disk(role: PodRole) -> None:
    volumes = (
        {"name": "cache", "emptyDir": {}},
        {"name": "plain", "emptyDir": None},
        {"name": "small", "emptyDir": {"sizeLimit": "5Mi"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "settings", "configMap": {"name": "settings"}},
    )
    pod = made(Profile(volumes=volumes, ephemeral_storage_mib=300, memory_mib=64), role=role)
    found = {v["name"]: v["emptyDir"] for v in pod["spec"]["volumes"] if "emptyDir" in v}
    given = {
        "cache": {"sizeLimit": "300Mi"},
        "plain": {"sizeLimit": "300Mi"},
        "small": {"sizeLimit": "5Mi"},
        "memory": {"medium": "Memory", "sizeLimit": "64Mi"},
    }
    assert found == {"warmpool-tmp": {"sizeLimit": "300Mi"}, **(given if role is PodRole.WORKER else {})}
    assert container_of(pod)["resources"]["limits"]["ephemeral-storage"] == "300Mi"


def test_a_worker_has_a_grace_period_and_a_placeholder_has_none() -> None:
    assert made()["spec"]["terminationGracePeriodSeconds"] == 600
    assert made(role=PodRole.PLACEHOLDER)["spec"]["terminationGracePeriodSeconds"] == 0


def test_a_new_pod_is_labelled_and_stamped_as_unclaimed() -> None:
    meta = made()["metadata"]
    assert meta["labels"] == {
        manifests.MANAGED_BY: "warmpool",
        LABEL_POOL: "warmpool-anchor",
        LABEL_WORKER: "w-one",
        LABEL_PROFILE: "default",
        LABEL_ROLE: "worker",
        LABEL_BUSY: "false",
    }
    assert meta["annotations"][NOTE_REVISION] == "rev-1"
    assert meta["annotations"][NOTE_SAFE_TO_EVICT] == "true"
    assert NOTE_DO_NOT_DISRUPT not in meta["annotations"]
    assert all(isinstance(v, str) for v in (meta["labels"] | meta["annotations"]).values())


def test_a_pools_selector_matches_no_pod_of_another_pool() -> None:
    labels = made()["metadata"]["labels"]
    for anchor, ours in (("warmpool-anchor", True), ("other", False)):
        terms = manifests.selector(KubernetesSettings(anchor=anchor)).split(",")
        assert all(labels.get(key) == value for key, value in (t.split("=") for t in terms)) is ours


def test_a_pod_is_owned_by_the_anchor_and_its_companion_by_the_pod() -> None:
    (owner,) = made()["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "warmpool-anchor",
        "uid": "anchor-uid",
    }
    secret = manifests.secret(SPEC, "pod-uid", PLACE.settings)
    assert secret["metadata"]["name"] == SPEC.name
    assert secret["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "w-one", "uid": "pod-uid"}
    ]


def test_a_worker_waits_for_its_key_secret_and_has_its_path_in_a_variable() -> None:
    pod = made()
    (volume,) = (v for v in pod["spec"]["volumes"] if "secret" in v)
    assert volume["secret"] == {"secretName": "w-one", "optional": False, "defaultMode": 0o440}
    (mount,) = (m for m in container_of(pod)["volumeMounts"] if m["name"] == volume["name"])
    assert env_of(pod)["WARMPOOL_KEY_FILE"] == f"{mount['mountPath']}/{manifests.KEY_NAME}"
    assert "00ff" not in json.dumps(pod)
    assert manifests.secret(SPEC, "pod-uid", PLACE.settings)["stringData"] == {manifests.KEY_NAME: "00ff"}


def test_a_worker_has_its_id_and_settings_in_variables() -> None:
    env = env_of(made())
    assert env["MODE"] == "fast"
    assert (env["WARMPOOL_WORKER"], env["WARMPOOL_PROFILE"]) == ("w-one", "default")
    assert (env["WARMPOOL_PORT"], env["WARMPOOL_GRACE_S"]) == ("8080", "600")
    assert env["WARMPOOL_UID"] == {"fieldRef": {"fieldPath": "metadata.uid"}}


def test_a_profile_sets_where_its_pods_run() -> None:
    profile = Profile(
        service_account="robot",
        run_as_user=1000,
        node_selector={"pool": "workers"},
        tolerations=({"key": "dedicated", "operator": "Exists"},),
        affinity={"nodeAffinity": {}},
        runtime_class="gvisor",
        priority_class="high",
        readiness_path="/ready",
        volumes=({"name": "cache", "emptyDir": {}},),
        mounts=({"name": "cache", "mountPath": "/cache"},),
        pod_labels={"team": "a"},
        pod_annotations={"example.com/note": "b"},
    )
    pod = made(profile)
    spec, container = pod["spec"], container_of(pod)
    assert spec["serviceAccountName"] == "robot"
    assert spec["securityContext"]["runAsUser"] == 1000
    assert spec["nodeSelector"] == {"pool": "workers"}
    assert spec["tolerations"] == [{"key": "dedicated", "operator": "Exists"}]
    assert spec["affinity"] == {"nodeAffinity": {}}
    assert (spec["runtimeClassName"], spec["priorityClassName"]) == ("gvisor", "high")
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert {"name": "cache", "emptyDir": {"sizeLimit": "1024Mi"}} in spec["volumes"]
    assert {"name": "cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 8080}
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["annotations"]["example.com/note"] == "b"


def test_a_placeholder_is_scheduled_like_a_worker_and_preempted_by_one() -> None:
    profile = Profile(
        node_selector={"pool": "workers"}, tolerations=({"key": "dedicated"},), priority_class="high"
    )
    spec = made(profile, role=PodRole.PLACEHOLDER, secret="")["spec"]
    assert spec["priorityClassName"] == "warmpool-placeholder"
    assert spec["nodeSelector"] == {"pool": "workers"}
    assert spec["tolerations"] == [{"key": "dedicated"}]
    (container,) = spec["containers"]
    assert container["command"] == ["sleep", "infinity"]
    assert not {"readinessProbe", "ports"} & container.keys()
    pause = replace(PLACE, settings=KubernetesSettings(placeholder_image="pause:3"))
    (container,) = made(place=pause, role=PodRole.PLACEHOLDER, secret="")["spec"]["containers"]
    assert (container["image"], container.get("command")) == ("pause:3", None)


def test_a_pod_may_have_its_own_service_account() -> None:
    profile = Profile(own_service_account=True, service_account="shared")
    assert made(profile)["spec"]["serviceAccountName"] == "w-one"
    account = manifests.service_account(SPEC, PLACE)
    assert account["metadata"]["ownerReferences"][0]["uid"] == "anchor-uid"
    assert account["automountServiceAccountToken"] is False


def test_a_profile_may_bring_its_own_tmp() -> None:
    profile = Profile(
        volumes=({"name": "scratch", "emptyDir": {"medium": "Memory"}},),
        mounts=({"name": "scratch", "mountPath": "/tmp"},),
    )
    container = container_of(made(profile))
    assert [m["name"] for m in container["volumeMounts"] if m["mountPath"] == "/tmp"] == ["scratch"]


WRONG = [
    {"tolerations": ({"operator": "Exists"},)},
    {"tolerations": ({"operator": "Exists", "key": ""},)},
    {"pod_labels": {LABEL_BUSY: "true"}},
    {"pod_labels": {manifests.MANAGED_BY: "me"}},
    {"pod_annotations": {NOTE_DO_NOT_DISRUPT: "true"}},
    {"pod_annotations": {NOTE_SAFE_TO_EVICT: "false"}},
    {"volumes": ({"name": "host", "hostPath": {"path": "/"}},)},
    {"mounts": ({"name": "warmpool-key", "mountPath": "/key"},)},
    {"env": {"WARMPOOL_KEY_FILE": "/elsewhere"}},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_profile_cannot_set_labels_of_the_pool(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        made(Profile(**wrong))


def test_every_label_and_annotation_of_the_pool_is_reserved() -> None:
    for word in (LABEL_PREFIX, NOTE_DO_NOT_DISRUPT, NOTE_SAFE_TO_EVICT):
        assert word.startswith(podrules.RESERVED_PREFIXES)
    assert manifests.MANAGED_BY in podrules.RESERVED_LABELS


def test_a_stamp_applies_to_one_version_and_the_first_drops_the_field_managers() -> None:
    first = changes.stamp(HELD, version="7", first=True)["metadata"]
    assert first["resourceVersion"] == "7"
    assert first["managedFields"] == [{}]
    later = changes.stamp(replace(HELD, claim_id=None, busy=False), version="8", first=False)["metadata"]
    assert "managedFields" not in later
    assert later["annotations"][NOTE_DO_NOT_DISRUPT] is None


def test_a_deletion_applies_to_one_uid_if_given() -> None:
    assert changes.deletion("u", 0)["preconditions"] == {"uid": "u"}
    assert changes.deletion("u", 0)["gracePeriodSeconds"] == 0
    assert "preconditions" not in changes.deletion("", None)
    assert "gracePeriodSeconds" not in changes.deletion("", None)


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
KEYS = (
    st.sampled_from([LABEL_BUSY, LABEL_WORKER, NOTE_REVISION, NOTE_DO_NOT_DISRUPT, NOTE_SAFE_TO_EVICT])
    | NAMES
    | st.text(max_size=80)
)
WORDS = st.dictionaries(KEYS, NAMES | st.text(max_size=80), max_size=3)


@given(name=NAMES, kind=NAMES, labels=WORDS, annotations=WORDS)
def test_no_profile_overrides_labels_or_annotations_of_the_pool(
    name: str, kind: str, labels: dict[str, str], annotations: dict[str, str]
) -> None:
    spec = replace(SPEC, name=name, profile=kind)
    plain = manifests.pod(spec, Profile(), PLACE)["metadata"]
    try:
        meta = manifests.pod(spec, Profile(pod_labels=labels, pod_annotations=annotations), PLACE)["metadata"]
    except InvalidInput:
        return
    assert plain["labels"].items() <= meta["labels"].items()
    assert plain["annotations"].items() <= meta["annotations"].items()
    assert NOTE_DO_NOT_DISRUPT not in meta["annotations"]


def test_the_roles_grant_exactly_what_the_code_uses() -> None:
    file = Path(manifests.__file__).with_name("rbac.yaml")
    granted = {
        (verb, resource)
        for role in yaml.safe_load_all(file.read_text())
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(right.verb, right.resource) for right in Right}
