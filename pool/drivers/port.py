"""The driver contract. `tests/contracts/driver.py` tests it; every driver passes these tests.

A driver keeps no state that matters: any replica may act on any pod, and a new replica decides as
well as an old one. Calls end within `call_timeout_s`. They raise `Transient` if the result is
unknown (the effect may have happened), and `Refused` if repeating cannot help.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, overload

from pool.core.names import LABEL_PREFIX

# Labels and annotations that belong to the pool. A profile cannot set them.
LABEL_WORKER = f"{LABEL_PREFIX}worker"
LABEL_PROFILE = f"{LABEL_PREFIX}profile"
LABEL_BUSY = f"{LABEL_PREFIX}busy"
LABEL_ROLE = f"{LABEL_PREFIX}role"
LABEL_POOL = f"{LABEL_PREFIX}pool"
NOTE_ORG = f"{LABEL_PREFIX}org"
NOTE_CLAIM = f"{LABEL_PREFIX}claim"
NOTE_EPOCH = f"{LABEL_PREFIX}epoch"
NOTE_REVISION = f"{LABEL_PREFIX}revision"
NOTE_DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
NOTE_SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"

_STAMPED_NOTES = (NOTE_EPOCH, NOTE_CLAIM, NOTE_ORG, NOTE_DO_NOT_DISRUPT, NOTE_SAFE_TO_EVICT)
# The metadata of a pod that a stamp writes: the label, then the annotations in the order above.
Signature = tuple[str | None, ...]


class PodRole(StrEnum):
    """The purpose of a pod."""

    WORKER = "worker"
    PLACEHOLDER = "placeholder"


class PodPhase(StrEnum):
    """The phase of a pod's container, as the driver reports it."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """A pod to create. Its name is the worker's id, so creating it twice creates one pod."""

    name: str
    profile: str
    revision: str
    image: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cpu_millicores: int
    memory_mib: int
    port: int
    grace_s: int
    secret: str = ""
    role: PodRole = PodRole.WORKER
    # For drivers without a profile: the path whose 2xx means ready. Empty: ready when running.
    readiness_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """The wanted metadata of a pod: its org, claim and epoch, and whether it may be disrupted."""

    org: str | None
    claim_id: str | None
    epoch: int
    busy: bool

    def labels(self) -> dict[str, str | None]:
        """Return the labels to set; None removes a label."""
        return {LABEL_BUSY: "true" if self.busy else "false"}

    def annotations(self) -> dict[str, str | None]:
        """Return the annotations to set; None removes one.

        The org is never removed: it shows which org used the pod.
        """
        notes: dict[str, str | None] = {
            NOTE_CLAIM: self.claim_id,
            NOTE_EPOCH: str(self.epoch),
            NOTE_DO_NOT_DISRUPT: "true" if self.busy else None,
            NOTE_SAFE_TO_EVICT: "false" if self.busy else "true",
        }
        return notes if self.org is None else notes | {NOTE_ORG: self.org}


def signature(*, busy: bool, epoch: int, claim_id: str | None, org: str | None) -> Signature:
    """Return the metadata of a pod that has this stamp and no trace of another org.

    If the signature of a pod is equal, the pod has the stamp. If not, the pod must be compared
    in detail.
    """
    if busy:
        return ("true", str(epoch), claim_id, org, "true", "false")
    return ("false", str(epoch), claim_id, org, None, "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the driver observed it."""

    name: str
    uid: str
    version: str
    phase: PodPhase
    ready: bool
    terminating: bool
    endpoint: str = ""
    node: str = ""
    image: str = ""
    age_s: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    # Why it does not start or how it ended, as the driver reports it; the exit code if it has
    # ended.
    trouble: str = ""
    unschedulable: bool = False
    exit_code: int | None = None
    # Why it will end soon although its deletion was not requested: selected for eviction, or its
    # node is being removed.
    leaving: str = ""

    @property
    def profile(self) -> str:
        return self.labels.get(LABEL_PROFILE, "")

    @property
    def role(self) -> str:
        return self.labels.get(LABEL_ROLE, PodRole.WORKER)

    @property
    def ever_stamped(self) -> bool:
        """Whether it ever had an org."""
        return NOTE_ORG in self.annotations

    @property
    def epoch(self) -> int:
        """The epoch that was last stamped on it; -1 if there is none or it is invalid."""
        text = self.annotations.get(NOTE_EPOCH, "")
        return int(text) if text.isdigit() else -1

    @property
    def protected(self) -> bool:
        """Whether its metadata protects it from disruption."""
        return NOTE_DO_NOT_DISRUPT in self.annotations or self.labels.get(LABEL_BUSY) == "true"

    @property
    def usable(self) -> bool:
        """Whether it can be handed out, as far as the driver knows."""
        return self.ready and self.phase is PodPhase.RUNNING and not (self.terminating or self.leaving)

    @property
    def signature(self) -> Signature:
        """The current values of the metadata that a stamp writes."""
        return (self.labels.get(LABEL_BUSY), *map(self.annotations.get, _STAMPED_NOTES))

    def says(self, stamp: Stamp) -> bool:
        """Return whether its metadata already contains what `stamp` would write."""
        return all(self.labels.get(k) == v for k, v in stamp.labels().items()) and all(
            self.annotations.get(k) == v for k, v in stamp.annotations().items()
        )


class ObservedPods(Sequence[Pod]):
    """Pods of a cache, by name. Their ages are computed only for pods that are read.

    An age changes without an event. With 100,000 pods, a reader that does not need ages should not
    pay for them.
    """

    def __init__(self, named: Mapping[str, Pod], aged: Callable[[Pod], Pod]) -> None:
        self.named = named
        self.aged = aged

    def __len__(self) -> int:
        return len(self.named)

    @overload
    def __getitem__(self, at: int) -> Pod: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Pod]: ...
    def __getitem__(self, at: int | slice) -> Pod | Sequence[Pod]:
        return tuple(self)[at]

    def __iter__(self) -> Iterator[Pod]:
        return map(self.aged, self.named.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All pods of this pool at one moment.

    `anchored` means that a consistent read also returned the anchor. Then an empty list is proof
    that there are no pods. `nodes_age_s` is the age of the view of the nodes, which may be unreadable;
    in a recent view, a pod that is not leaving can stay.
    """

    pods: Sequence[Pod]
    anchored: bool
    age_s: float = 0.0
    nodes_age_s: float = 0.0

    def named(self) -> Mapping[str, Pod]:
        """Return the pods by name, without current ages. `aged` adds the age of one pod."""
        return self.pods.named if isinstance(self.pods, ObservedPods) else {p.name: p for p in self.pods}

    def aged(self, pod: Pod) -> Pod:
        """Return a pod of `named` with its current age."""
        return self.pods.aged(pod) if isinstance(self.pods, ObservedPods) else pod


class StampResult(StrEnum):
    """The result of a stamp."""

    WRITTEN = "written"
    CONFLICT = "conflict"
    TERMINATING = "terminating"
    GONE = "gone"


class Word(StrEnum):
    """A worker's self-report."""

    BUSY = "busy"
    UNUSED = "unused"
    SILENT = "silent"


class Driver(Protocol):
    """The adapter that creates, lists and deletes pods."""

    def create(self, spec: PodSpec) -> Pod:
        """Create the pod and its companions. Do not wait for readiness.

        If a pod of this name was created by this pool before, return it, and create companions that
        are missing.
        """

    def delete(self, name: str, uid: str, *, grace_s: int | None = None) -> None:
        """Request the deletion of the pod and its companions. Return once it is accepted.

        It is a success if there is no such pod, or if the pod has another uid. An empty uid matches
        any pod of that name. Repeating the call never extends the grace period.
        """

    def read(self, name: str) -> Pod | None:
        """Return one pod, by a consistent read."""

    def recent(self, name: str) -> Pod | None:
        """Return one pod as last observed, without a call to a server.

        None if this process does not follow the pods, or has not seen this one. The answer may be
        old: a stamp based on it is refused if the pod has changed.
        """

    def list(self) -> Listing:
        """Return all pods of this pool, by a consistent read. Raise rather than return a partial list."""

    def cached(self) -> Listing:
        """Return all pods as last observed, without a call. `age_s` is the age of that observation."""

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        """Yield the current state of every pod, then every change, until `stop` is set.

        The end of a pod is reported as `Gone`. Events may repeat; the newest state of a pod is
        never left out.
        """

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        """Write the stamp if the pod is still at `pod.version`."""

    def word(self, pod: Pod) -> Word:
        """Return the self-report of the worker. An ended container is UNUSED; one without an answer
        is SILENT.
        """

    def companions(self) -> tuple[str, ...]:
        """Return the names of the pods that have companion objects."""

    def delete_companions(self, name: str) -> None:
        """Delete the companions of a pod that does not exist any more. It is a success if there are none."""

    def close(self) -> None:
        """Close connections and stop threads. Pods keep running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A pod that existed and does not exist any more."""

    name: str
    uid: str
