"""Identify the build of a profile, and fill in the body of an activation. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pool.core.settings import KubernetesSettings, Profile

_SHAPING = (
    "image", "command", "env", "cpu_millicores", "memory_mib", "ephemeral_storage_mib", "port", "grace_s", "service_account",
    "own_service_account", "run_as_user", "node_selector", "tolerations", "affinity", "runtime_class",
    "priority_class", "readiness_path", "volumes", "mounts", "pod_labels", "pod_annotations",
)  # fmt: skip
# What shapes a placeholder beside its size and its image.
_SHAPING_PLACEHOLDERS = (
    "ephemeral_storage_mib", "service_account", "run_as_user", "node_selector", "tolerations", "affinity", "runtime_class",
    "pod_labels", "pod_annotations",
)  # fmt: skip
_PLACEHOLDER = re.compile(r"\{(org|claim_id|worker_id|values\.[A-Za-z0-9_.-]+)\}")
# Matches more, to find misspelt placeholders.
_PLACEHOLDER_LIKE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")


def revision(profile: Profile) -> str:
    """Return a short hash of everything that shapes a pod of this profile."""
    return _digest({k: getattr(profile, k) for k in _SHAPING})


def settings_number(profile: Profile) -> int:
    """Return a number that differs if any setting of the profile differs, to compare file and running pool."""
    return int(_digest({f.name: getattr(profile, f.name) for f in fields(profile)})[:7], 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSize:
    """The resources of one placeholder: those of a worker, unless the profile sets others."""

    cpu_millicores: int
    memory_mib: int

    @classmethod
    def of(cls, profile: Profile) -> PlaceholderSize:
        return cls(
            cpu_millicores=profile.headroom_cpu_millicores or profile.cpu_millicores,
            memory_mib=profile.headroom_memory_mib or profile.memory_mib,
        )


def placeholder_revision(profile: Profile, kubernetes: KubernetesSettings) -> str:
    """Return a short hash of everything that shapes a placeholder of this profile."""
    size = PlaceholderSize.of(profile)
    return _digest(
        {
            **{k: getattr(profile, k) for k in _SHAPING_PLACEHOLDERS},
            "size": (size.cpu_millicores, size.memory_mib),
            "image": kubernetes.placeholder_image or profile.image,
            "priority_class": kubernetes.placeholder_priority_class,
        }
    )


def _digest(shape: Mapping[str, Any]) -> str:
    text = json.dumps(shape, sort_keys=True, default=lambda v: dict(v) if isinstance(v, Mapping) else list(v))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def payload(profile: Profile, *, org: str, claim_id: str, worker_id: str, values: Mapping[str, str]) -> Any:
    """Return the activation body with its placeholders replaced; unknown ones stay unchanged."""
    known = {"org": org, "claim_id": claim_id, "worker_id": worker_id}
    known |= {f"values.{k}": v for k, v in values.items()}
    return _fill(dict(profile.activation_payload), known)


def unknown_placeholders(template: Any, values: Mapping[str, str]) -> list[str]:
    """Return the placeholders that have no value, for `config check`."""
    known = {"org", "claim_id", "worker_id"} | {f"values.{k}" for k in values}
    return sorted({m for m in _PLACEHOLDER_LIKE.findall(json.dumps(template)) if m not in known})


def _fill(node: Any, known: Mapping[str, str]) -> Any:
    if isinstance(node, str):
        return _PLACEHOLDER.sub(lambda m: known.get(m.group(1), m.group(0)), node)
    if isinstance(node, Mapping):
        return {k: _fill(v, known) for k, v in node.items()}
    if isinstance(node, list):
        return [_fill(v, known) for v in node]
    return node
