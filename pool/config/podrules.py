"""What a profile may say of its pods beyond the types: nothing that belongs to the pool, nothing that the restricted pod
security profile forbids, no toleration of everything. Each rule yields what is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pool.config.kinds import Wrong

# A profile can not set these: the pool reads its own decisions from them, disruptors theirs.
RESERVED_PREFIXES = ("warmpool.dev/", "karpenter.sh/", "cluster-autoscaler.kubernetes.io/")
RESERVED_LABELS = frozenset({"app.kubernetes.io/managed-by"})
RESERVED_VOLUMES = "warmpool-"

_NAME_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME_PART}")
_LABEL_VALUE = re.compile(rf"(?:{_NAME_PART})?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_VOLUME_KINDS = frozenset(
    {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected",
        "secret",
    }
)  # fmt: skip


def pod_labels(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Extra labels."""
    yield from pod_annotations(value)
    for key, text in value.items():
        if isinstance(text, str) and not _LABEL_VALUE.fullmatch(text):
            yield Wrong(path=(key,), given=text, takes="a label: up to 63 letters, digits, - _ and .")


def pod_annotations(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Extra annotations."""
    for key in value:
        if key.startswith(RESERVED_PREFIXES) or key in RESERVED_LABELS:
            yield Wrong(path=(key,), verb="is named", given=key, takes="any name that is not the pool's own")
        elif not _KEY.fullmatch(key):
            yield Wrong(path=(key,), verb="is named", given=key, takes="NAME or DOMAIN/NAME")


def selector(value: Mapping[str, Any]) -> Iterator[Wrong]:
    """Labels of nodes: anybody's."""
    for key, text in value.items():
        if not _KEY.fullmatch(key):
            yield Wrong(path=(key,), verb="is named", given=key, takes="NAME or DOMAIN/NAME")
        elif isinstance(text, str) and not _LABEL_VALUE.fullmatch(text):
            yield Wrong(path=(key,), given=text, takes="a label: up to 63 letters, digits, - _ and .")


def tolerations(value: Sequence[Any]) -> Iterator[Wrong]:
    """A worker that tolerates everything stays on nodes that are being taken away."""
    for index, item in enumerate(value):
        if isinstance(item, Mapping) and not (isinstance(item.get("key"), str) and item["key"]):
            yield Wrong(path=(str(index),), given=item, takes="a toleration that names its key")


def volumes(value: Sequence[Any]) -> Iterator[Wrong]:
    """Kinds that the restricted profile allows, under names that are not ours."""
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            continue
        name, kinds = item.get("name"), item.keys() - {"name"}
        if not (isinstance(name, str) and _DNS_LABEL.fullmatch(name)) or name.startswith(RESERVED_VOLUMES):
            yield Wrong(
                path=(str(index),), given=item, takes=f"a volume with a name, not {RESERVED_VOLUMES}..."
            )
        elif len(kinds) != 1 or not kinds <= _VOLUME_KINDS:
            yield Wrong(path=(str(index),), given=item, takes=f"one of {', '.join(sorted(_VOLUME_KINDS))}")


def mounts(value: Sequence[Any]) -> Iterator[Wrong]:
    """Each names a volume of the profile and an absolute path."""
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
    """The name of a Kubernetes object, or nothing."""
    if value and not _OBJECT_NAME.fullmatch(value):
        yield Wrong(given=value, takes="a name of lower-case letters, digits, - and ., or nothing")


def object_names(value: Sequence[Any]) -> Iterator[Wrong]:
    """Names of Kubernetes objects."""
    for index, item in enumerate(value):
        if isinstance(item, str) and not _OBJECT_NAME.fullmatch(item):
            yield Wrong(path=(str(index),), given=item, takes="a name of lower-case letters, digits, - and .")


def namespace(value: str) -> Iterator[Wrong]:
    """A namespace, or nothing."""
    if value and not _DNS_LABEL.fullmatch(value):
        yield Wrong(given=value, takes="1 to 63 of the characters a-z 0-9 -, or nothing")


def anchor(value: str) -> Iterator[Wrong]:
    """The anchor's name is also a label of every pod."""
    if not _DNS_LABEL.fullmatch(value):
        yield Wrong(given=value, takes="1 to 63 of the characters a-z 0-9 -")
