"""Patches and deletions of existing objects. Each applies only to the version or uid that was
observed. Pure.
"""

from __future__ import annotations

from pool.drivers.kubernetes.manifests import Manifest, owner
from pool.drivers.port import Stamp


def stamp(stamp: Stamp, *, version: str, first: bool) -> Manifest:
    """Return a patch that applies only to that version.

    The first one also clears managedFields: they are half of a pod's bytes, the driver does not
    read them, and every later write would send them again.
    """
    metadata = {
        "resourceVersion": version,
        "labels": stamp.labels(),
        "annotations": stamp.annotations(),
    }
    return {"metadata": metadata | ({"managedFields": [{}]} if first else {})}


def owned_by_pod(name: str, pod_uid: str) -> Manifest:
    """Return a patch that makes the pod the owner of an object, so that it is deleted with the pod."""
    return {"metadata": {"ownerReferences": [owner("Pod", name, pod_uid)]}}


def deletion(uid: str, grace_s: int | None) -> Manifest:
    """Return the options of a deletion: the uid it applies to, and the grace period."""
    options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    if grace_s is not None:
        options["gracePeriodSeconds"] = grace_s
    return options | ({"preconditions": {"uid": uid}} if uid else {})
