"""What is asked of objects that exist: a stamp, another owner, the end. Each holds only for what was seen. Pure."""

from __future__ import annotations

from pool.drivers.kubernetes.manifests import Manifest, owner
from pool.drivers.port import Stamp


def stamp(stamp: Stamp, *, version: str, first: bool) -> Manifest:
    """A patch that holds only for that version. The first one also drops the field managers' notes, half of a pod's bytes,
    which nothing here reads and every later write would carry."""
    metadata = {
        "resourceVersion": version,
        "labels": stamp.labels(),
        "annotations": stamp.annotations(),
    }
    return {"metadata": metadata | ({"managedFields": [{}]} if first else {})}


def owned_by_pod(name: str, pod_uid: str) -> Manifest:
    """A patch after which an object goes with its pod."""
    return {"metadata": {"ownerReferences": [owner("Pod", name, pod_uid)]}}


def deletion(uid: str, grace_s: int | None) -> Manifest:
    """What a deletion holds for, and how long its pod may take."""
    options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options | ({"preconditions": {"uid": uid}} if uid else {})
