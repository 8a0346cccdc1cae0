"""Check the pod settings of a profile: no names reserved for the pool, nothing that the restricted
pod security standard forbids, no toleration of every taint. Each rule yields what is invalid. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pool.config.kinds import Wrong
from pool.core.names import DNS_LABEL, DNS_LABEL_RULE, LABEL_PREFIX

# A profile cannot set these: the pool stores its decisions in them, and node autoscalers act on them.
RESERVED_PREFIXES = (LABEL_PREFIX, "karpenter.sh/", "cluster-autoscaler.kubernetes.io/")
RESERVED_LABELS = frozenset({"app.kubernetes.io/managed-by"})
RESERVED_VOLUMES = "warmpool-"

_NAME_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME_PART}")
_LABEL_VALUE = re.compile(rf"(?:{_NAME_PART})?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")

_VOLUME_KINDS = frozenset(
    {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected",
        "secret",
    }
)  # fmt: skip


def pod_labels(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Check extra labels."""
    yield from pod_annotations(value)
    for key, text in value.items():
        if isinstance(text, str) and not _LABEL_VALUE.fullmatch(text):
            yield Wrong(path=(key,), given=text, takes="a label: up to 63 letters, digits, - _ and .")


def pod_annotations(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Check extra annotations."""
    for key in value:
        if key.startswith(RESERVED_PREFIXES) or key in RESERVED_LABELS:
            yield Wrong(path=(key,), verb="is named", given=key, takes="a name that is not reserved")
        elif not _KEY.fullmatch(key):
            yield Wrong(path=(key,), verb="is named", given=key, takes="NAME or DOMAIN/NAME")


def selector(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Check labels of nodes; all names are allowed."""
    for key, text in value.items():
        if not _KEY.fullmatch(key):
            yield Wrong(path=(key,), verb="is named", given=key, takes="NAME or DOMAIN/NAME")
        elif isinstance(text, str) and not _LABEL_VALUE.fullmatch(text):
            yield Wrong(path=(key,), given=text, takes="a label: up to 63 letters, digits, - _ and .")


def tolerations(value: Sequence[Any]) -> Iterator[Wrong]:
    """Check that each toleration names its key: a worker that tolerates every taint stays on nodes
    being drained.
    """
    for index, item in enumerate(value):
        if isinstance(item, Mapping) and not (isinstance(item.get("key"), str) and item["key"]):
            yield Wrong(path=(str(index),), given=item, takes="a toleration with a key")


def volumes(value: Sequence[Any]) -> Iterator[Wrong]:
    """Check for the volume types that the restricted standard allows and for names that are not reserved."""
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            continue
        name, kinds = item.get("name"), item.keys() - {"name"}
        if not (isinstance(name, str) and DNS_LABEL.fullmatch(name)) or name.startswith(RESERVED_VOLUMES):
            yield Wrong(
                path=(str(index),),
                given=item,
                takes=f"a volume with a name that does not begin with {RESERVED_VOLUMES}",
            )
        elif len(kinds) != 1 or not kinds <= _VOLUME_KINDS:
            yield Wrong(
                path=(str(index),),
                given=item,
                takes=f"a volume of one of the types {', '.join(sorted(_VOLUME_KINDS))}",
            )


def mounts(value: Sequence[Any]) -> Iterator[Wrong]:
    """Check that each mount has the name of a volume and an absolute path."""
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            continue
        name, path = item.get("name"), item.get("mountPath")
        fits = isinstance(name, str) and isinstance(path, str) and path.startswith("/") and name
        if not fits or str(name).startswith(RESERVED_VOLUMES):
            yield Wrong(
                path=(str(index),), given=item, takes="a mount with the name of a volume and a mountPath"
            )


def object_name(value: str) -> Iterator[Wrong]:
    """Check the name of a Kubernetes object; it may be empty."""
    if value and not _OBJECT_NAME.fullmatch(value):
        yield Wrong(given=value, takes="a name of lower-case letters, digits, - and ., or empty")


def object_names(value: Sequence[Any]) -> Iterator[Wrong]:
    """Check names of Kubernetes objects."""
    for index, item in enumerate(value):
        if isinstance(item, str) and not _OBJECT_NAME.fullmatch(item):
            yield Wrong(path=(str(index),), given=item, takes="a name of lower-case letters, digits, - and .")


def namespace(value: str) -> Iterator[Wrong]:
    """Check the name of a namespace; it may be empty."""
    if value and not DNS_LABEL.fullmatch(value):
        yield Wrong(given=value, takes=f"{DNS_LABEL_RULE}; or empty")


def anchor(value: str) -> Iterator[Wrong]:
    """Check the anchor's name, which is also a label of every pod."""
    if not DNS_LABEL.fullmatch(value):
        yield Wrong(given=value, takes=DNS_LABEL_RULE)
