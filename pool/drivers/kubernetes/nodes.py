"""Which nodes are being removed, and which of their pods are affected. Pure."""

from __future__ import annotations

import msgspec

# Taints that autoscalers set on nodes that they are about to remove.
REMOVAL_TAINTS = frozenset(
    {"karpenter.sh/disrupted", "karpenter.sh/disruption", "ToBeDeletedByClusterAutoscaler"}
)


class Taint(msgspec.Struct, frozen=True):
    """A taint of a node."""

    key: str
    effect: str = ""
    value: str = ""


class Toleration(msgspec.Struct, frozen=True, rename="camel"):
    """A toleration of a pod."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None

    def tolerates_for_good(self, taint: Taint) -> bool:
        if self.toleration_seconds is not None or self.effect not in ("", taint.effect):
            return False
        if not self.key:
            return self.operator == "Exists"
        return self.key == taint.key and (self.operator == "Exists" or self.value == taint.value)


class Node(msgspec.Struct, frozen=True):
    """The fields of a node that affect its pods."""

    name: str
    cordoned: bool = False
    taints: tuple[Taint, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether it has neither a cordon nor taints."""
        return not self.cordoned and not self.taints

    def leaving(self, tolerations: tuple[Toleration, ...]) -> str:
        """Return why a pod with these tolerations cannot stay here; empty if it can. A tolerated
        taint is no reason.
        """
        if self.cordoned:
            return f"its node {self.name} is cordoned"
        for taint in self.taints:
            evicts = taint.effect == "NoExecute" and not any(t.tolerates_for_good(taint) for t in tolerations)
            if evicts or taint.key in REMOVAL_TAINTS:
                return f"its node {self.name} is tainted {taint.key}"
        return ""
