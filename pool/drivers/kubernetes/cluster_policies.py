"""Objects of others that affect our pods: PriorityClasses, PodDisruptionBudgets, NodePools. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from pool.core.settings import Profile
from pool.drivers.kubernetes.nodes import Taint, Toleration
from pool.drivers.kubernetes.wire import ListOf, Meta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# More than any pool has. A budget with this minAvailable allows no eviction.
_ALL = 1_000_000
_NODEPOOL = "karpenter.sh/nodepool"


class AccessVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """The decision of the API server about one right."""

    allowed: bool = False
    reason: str = ""
    evaluation_error: str = ""


class Review(msgspec.Struct, frozen=True):
    status: AccessVerdict = AccessVerdict()


class PriorityClass(msgspec.Struct, frozen=True, rename="camel"):
    """A PriorityClass: which pods preempt others."""

    metadata: Meta
    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"

    @property
    def pushes_aside(self) -> bool:
        return self.preemption_policy != "Never"


class Expression(msgspec.Struct, frozen=True):
    """One condition of a selector."""

    key: str
    operator: str
    values: list[str] = []

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case _:
                return self.key not in labels


class Selector(msgspec.Struct, frozen=True, rename="camel"):
    """A label selector. An empty one selects all pods."""

    match_labels: dict[str, str] = {}
    match_expressions: list[Expression] = []

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.match_labels.items() <= labels.items() and all(
            e.holds(labels) for e in self.match_expressions
        )


class BudgetSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: Selector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class Budget(msgspec.Struct, frozen=True):
    """A PodDisruptionBudget."""

    metadata: Meta
    spec: BudgetSpec = BudgetSpec()

    def selects(self, labels: Mapping[str, str]) -> bool:
        return self.spec.selector is not None and self.spec.selector.selects(labels)

    @property
    def spares_all(self) -> bool:
        """Whether no pod that it selects may be evicted. Percentages do not apply to pods without a
        controller.
        """
        least = self.spec.min_available
        return isinstance(least, int) and least >= _ALL


class NodeTemplateSpec(msgspec.Struct, frozen=True, rename="camel"):
    termination_grace_period: str = ""
    taints: tuple[Taint, ...] = ()


class NodeTemplate(msgspec.Struct, frozen=True):
    metadata: Meta = Meta()
    spec: NodeTemplateSpec = NodeTemplateSpec()


class NodePoolSpec(msgspec.Struct, frozen=True):
    template: NodeTemplate = NodeTemplate()


class NodePool(msgspec.Struct, frozen=True):
    """A Karpenter NodePool."""

    metadata: Meta
    spec: NodePoolSpec = NodePoolSpec()

    @property
    def ceiling_s(self) -> float | None:
        """The longest time that a leaving node waits for its pods, in seconds; None means forever."""
        return seconds(self.spec.template.spec.termination_grace_period)

    def may_host(self, profile: Profile) -> bool:
        """Return whether a pod of this profile may run on such a node. Labels that are not set may
        have any value.
        """
        has = {**self.spec.template.metadata.labels, _NODEPOOL: self.metadata.name}
        if any(has.get(key, value) != value for key, value in profile.node_selector.items()):
            return False
        tolerations = msgspec.convert([dict(t) for t in profile.tolerations], tuple[Toleration, ...])
        shut = [t for t in self.spec.template.spec.taints if t.effect in ("NoSchedule", "NoExecute")]
        return all(any(t.tolerates_for_good(taint) for t in tolerations) for taint in shut)


def seconds(duration: str) -> float | None:
    """Parse a Go duration such as 1h30m; return None if it is empty."""
    parts = _DURATION.findall(duration)
    return sum(float(n) * _SECONDS[unit] for n, unit in parts) if parts else None


REVIEW = msgspec.json.Decoder(Review)
PRIORITIES = msgspec.json.Decoder(ListOf[PriorityClass])
BUDGETS = msgspec.json.Decoder(ListOf[Budget])
NODEPOOLS = msgspec.json.Decoder(ListOf[NodePool])
