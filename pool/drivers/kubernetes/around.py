"""What others have set up around our pods and what decides over them: priorities, budgets for disruption, kinds of nodes. Pure: shapes of what the API
server sends, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from pool.core.settings import Profile
from pool.drivers.kubernetes.nodes import Taint, Toleration
from pool.drivers.kubernetes.wire import ListOf, Meta

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
# More than any pool has: a budget that asks for so many to stay lets nobody go.
_ALL = 1_000_000
_NODEPOOL = "karpenter.sh/nodepool"


class SurroundingsVerdict(msgspec.Struct, frozen=True, rename="camel"):
    """What the API server says of one right."""

    allowed: bool = False
    reason: str = ""
    evaluation_error: str = ""


class Review(msgspec.Struct, frozen=True):
    status: SurroundingsVerdict = SurroundingsVerdict()


class PriorityClass(msgspec.Struct, frozen=True, rename="camel"):
    """Who goes before whom when there is no room."""

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
    """Which pods are meant; an empty one means all."""

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
        """Whether no pod that it selects may be evicted. Shares of a whole have no meaning for pods without a controller."""
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
    """A kind of nodes that Karpenter makes."""

    metadata: Meta
    spec: NodePoolSpec = NodePoolSpec()

    @property
    def ceiling_s(self) -> float | None:
        """How long a node that is to go waits for its pods at most; None: for ever."""
        return seconds(self.spec.template.spec.termination_grace_period)

    def may_host(self, profile: Profile) -> bool:
        """Whether a pod of this profile may come to stand on such a node. What the labels do not say is taken to be possible."""
        has = {**self.spec.template.metadata.labels, _NODEPOOL: self.metadata.name}
        if any(has.get(key, value) != value for key, value in profile.node_selector.items()):
            return False
        tolerations = msgspec.convert([dict(t) for t in profile.tolerations], tuple[Toleration, ...])
        shut = [t for t in self.spec.template.spec.taints if t.effect in ("NoSchedule", "NoExecute")]
        return all(any(t.tolerates_for_good(taint) for t in tolerations) for taint in shut)


def seconds(duration: str) -> float | None:
    """A duration as Go writes it, such as 1h30m; None for none."""
    parts = _DURATION.findall(duration)
    return sum(float(n) * _SECONDS[unit] for n, unit in parts) if parts else None


REVIEW = msgspec.json.Decoder(Review)
PRIORITIES = msgspec.json.Decoder(ListOf[PriorityClass])
BUDGETS = msgspec.json.Decoder(ListOf[Budget])
NODEPOOLS = msgspec.json.Decoder(ListOf[NodePool])
