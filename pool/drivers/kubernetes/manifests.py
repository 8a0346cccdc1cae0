"""Manifests: the pod of a worker or a placeholder, and its companions. Pure.

A new pod is marked as unclaimed from the start. A profile cannot loosen the restricted security
context, tolerate all taints, or set labels and annotations of the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pool.config.kinds import Wrong
from pool.config.rules import RULES
from pool.core import names
from pool.core.errors import InvalidInput
from pool.core.settings import KubernetesSettings, Profile
from pool.drivers import contract
from pool.drivers.port import (
    LABEL_POOL,
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_REVISION,
    PodRole,
    PodSpec,
    Stamp,
)

CONTAINER = "worker"
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "warmpool"
KEY_NAME = "key"
KEY_FOLDER = "/var/run/warmpool"
UNCLAIMED = Stamp(org=None, claim_id=None, epoch=0, busy=False)

_KEY_VOLUME, _TMP_VOLUME = "warmpool-key", "warmpool-tmp"
# The group that may read the key, whatever user the image runs as.
_GROUP = 65_532

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlace:
    """The settings and the anchor that manifests refer to."""

    settings: KubernetesSettings
    anchor_uid: str


def selector(settings: KubernetesSettings) -> str:
    """Return the label selector of all objects of this pool."""
    return f"{MANAGED_BY}={MANAGER},{LABEL_POOL}={settings.anchor}"


def pod(spec: PodSpec, profile: Profile, place: PodPlace) -> Manifest:
    """Return the pod for `spec`, shaped by its profile."""
    _refuse_wrong(profile)
    labels = {**profile.pod_labels, **_labels(spec, place.settings), **_set(UNCLAIMED.labels())}
    notes = {**profile.pod_annotations, NOTE_REVISION: spec.revision, **_set(UNCLAIMED.annotations())}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec.name,
            "labels": labels,
            "annotations": notes,
            "ownerReferences": [owner("ConfigMap", place.settings.anchor, place.anchor_uid)],
        },
        "spec": _filled(_pod_spec(spec, profile, place.settings)),
    }


def secret(spec: PodSpec, pod_uid: str, settings: KubernetesSettings) -> Manifest:
    """Return the Secret with the worker's key. It is deleted with its pod."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _companion(spec, settings) | {"ownerReferences": [owner("Pod", spec.name, pod_uid)]},
        "type": "Opaque",
        "stringData": {KEY_NAME: spec.secret},
    }


def service_account(spec: PodSpec, place: PodPlace) -> Manifest:
    """Return a pod's own ServiceAccount. It must exist before the pod, so the anchor owns it until
    the pod does.
    """
    owners = [owner("ConfigMap", place.settings.anchor, place.anchor_uid)]
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _companion(spec, place.settings) | {"ownerReferences": owners},
        "automountServiceAccountToken": False,
    }


def anchor(settings: KubernetesSettings) -> Manifest:
    """Return the anchor, which owns all pods. Deleting it deletes them."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": settings.anchor, "labels": {MANAGED_BY: MANAGER}},
    }


def _pod_spec(spec: PodSpec, profile: Profile, settings: KubernetesSettings) -> Manifest:
    worker = spec.role is PodRole.WORKER
    account = spec.name if profile.own_service_account and worker else profile.service_account
    priority = profile.priority_class or settings.worker_priority_class
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.grace_s if worker else 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": account,
        "securityContext": _filled(
            {
                "runAsNonRoot": True,
                "runAsUser": profile.run_as_user,
                "fsGroup": profile.run_as_user or _GROUP,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        ),
        "priorityClassName": priority if worker else settings.placeholder_priority_class,
        "nodeSelector": dict(profile.node_selector),
        "tolerations": [dict(t) for t in profile.tolerations],
        "affinity": dict(profile.affinity),
        "runtimeClassName": profile.runtime_class,
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
        "volumes": list(_volumes(spec, profile)),
        "containers": [_filled(_container(spec, profile, settings))],
    }


def _container(spec: PodSpec, profile: Profile, settings: KubernetesSettings) -> Manifest:
    size = {
        "cpu": f"{spec.cpu_millicores}m",
        "memory": f"{spec.memory_mib}Mi",
        "ephemeral-storage": f"{profile.ephemeral_storage_mib}Mi",
    }
    container: Manifest = {
        "name": CONTAINER,
        "image": spec.image,
        "command": list(spec.command),
        "resources": {"requests": size, "limits": size},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": list(_mounts(spec, profile)),
    }
    if spec.role is PodRole.PLACEHOLDER:
        asleep = {"image": settings.placeholder_image} if settings.placeholder_image else {"command": _SLEEP}
        return container | asleep
    return container | {
        "ports": [{"name": "worker", "containerPort": spec.port}],
        "env": list(_env(spec)),
        "readinessProbe": _probe(profile.readiness_path, spec.port),
    }


_SLEEP = ["sleep", "infinity"]


def _env(spec: PodSpec) -> Iterator[Manifest]:
    """Yield the variables of the profile, overridden by those of `pool.drivers.contract`."""
    told = {
        names.ENV_WORKER: spec.name,
        names.ENV_PROFILE: spec.profile,
        names.ENV_PORT: str(spec.port),
        contract.PORT_HINT: str(spec.port),
        names.ENV_GRACE_S: str(spec.grace_s),
    }
    if spec.secret:
        told[names.ENV_KEY_FILE] = f"{KEY_FOLDER}/{KEY_NAME}"
    for name, value in {**spec.env, **told}.items():
        yield {"name": name, "value": value}
    yield {"name": names.ENV_UID, "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}


def _probe(path: str, port: int) -> Manifest:
    if not path:
        return {}
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": 1,
        "timeoutSeconds": 2,
        "failureThreshold": 3,
    }


def _volumes(spec: PodSpec, profile: Profile) -> Iterator[Manifest]:
    if _has_own_tmp(spec, profile):
        yield _bounded({"name": _TMP_VOLUME, "emptyDir": {}}, profile)
    if spec.secret:
        # Not optional: the pod is created first, and its container waits for its key.
        key = {"secretName": spec.name, "optional": False, "defaultMode": 0o440}
        yield {"name": _KEY_VOLUME, "secret": key}
    if spec.role is PodRole.WORKER:
        yield from (_bounded(v, profile) for v in profile.volumes)


def _bounded(volume: Mapping[str, Any], profile: Profile) -> Manifest:
    """Return an emptyDir with a size limit, so that a worker cannot fill the disk or memory of its
    node. A limit in the profile stays.
    """
    if "emptyDir" not in volume:
        return dict(volume)
    given = dict(volume["emptyDir"] or {})
    in_memory = given.get("medium") == "Memory"
    size_mib = profile.memory_mib if in_memory else profile.ephemeral_storage_mib
    return {**volume, "emptyDir": {"sizeLimit": f"{size_mib}Mi", **given}}


def _mounts(spec: PodSpec, profile: Profile) -> Iterator[Manifest]:
    if _has_own_tmp(spec, profile):
        yield {"name": _TMP_VOLUME, "mountPath": "/tmp"}  # noqa: S108 - an emptyDir of this pod
    if spec.secret:
        yield {"name": _KEY_VOLUME, "mountPath": KEY_FOLDER, "readOnly": True}
    if spec.role is PodRole.WORKER:
        yield from (dict(m) for m in profile.mounts)


def _has_own_tmp(spec: PodSpec, profile: Profile) -> bool:
    given = spec.role is PodRole.WORKER and any(m.get("mountPath") == "/tmp" for m in profile.mounts)  # noqa: S108
    return not given


def _labels(spec: PodSpec, settings: KubernetesSettings) -> dict[str, str]:
    return {
        MANAGED_BY: MANAGER,
        LABEL_POOL: settings.anchor,
        LABEL_WORKER: spec.name,
        LABEL_PROFILE: spec.profile,
        LABEL_ROLE: str(spec.role),
    }


def _companion(spec: PodSpec, settings: KubernetesSettings) -> Manifest:
    return {"name": spec.name, "labels": _labels(spec, settings)}


def owner(kind: str, name: str, uid: str) -> Manifest:
    """Return an owner reference."""
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}


def _set(wanted: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in wanted.items() if value is not None}


def _filled(manifest: Manifest) -> Manifest:
    """Return the manifest without empty values. False and 0 are kept."""
    return {k: v for k, v in manifest.items() if v is not None and v not in ("", [], {})}


def _refuse_wrong(profile: Profile) -> None:
    """Check the rules of the configuration again, because a profile may have been built without
    reading a file.
    """
    for (cls, field), rule in RULES.items():
        if cls is Profile:
            wrong: Wrong | None = next(rule(getattr(profile, field)), None)
            if wrong is not None:
                raise InvalidInput(f"profile {profile.name}: {field}", f"takes {wrong.takes}")
