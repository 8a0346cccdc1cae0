"""What a driver promises. `tests/contracts/driver.py` is this page as a test suite; every driver passes it unchanged.

A driver keeps no memory of its own that matters: any replica may act on any pod, and a replica that starts with
nothing judges as well as one that has run for days. Calls are bounded by `call_timeout_s`, raise `Transient` when the
answer is not known (the effect may have happened), and `Refused` when repeating cannot help.
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
# What of a pod's metadata a stamp writes: the label, then the annotations in the order above.
Signature = tuple[str | None, ...]


class PodRole(StrEnum):
    """Why a pod exists."""

    WORKER = "worker"
    PLACEHOLDER = "placeholder"


class PodPhase(StrEnum):
    """What the driver itself says of a pod's container."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """A pod to be made. Its name is the worker's id, so that making it twice makes it once."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a pod's metadata should say: who holds it, at which epoch, and whether it may be disturbed."""

    org: str | None
    claim_id: str | None
    epoch: int
    busy: bool

    def labels(self) -> dict[str, str | None]:
        """The labels to set; None removes one."""
        return {LABEL_BUSY: "true" if self.busy else "false"}

    def annotations(self) -> dict[str, str | None]:
        """The annotations to set; None removes one. An org's name is never removed: it tells whose the pod was."""
        notes: dict[str, str | None] = {
            NOTE_CLAIM: self.claim_id,
            NOTE_EPOCH: str(self.epoch),
            NOTE_DO_NOT_DISRUPT: "true" if self.busy else None,
            NOTE_SAFE_TO_EVICT: "false" if self.busy else "true",
        }
        return notes if self.org is None else notes | {NOTE_ORG: self.org}


def signature(*, busy: bool, epoch: int, claim_id: str | None, org: str | None) -> Signature:
    """What a pod with this stamp bears, and no trace of another org. A pod whose own signature is the same `says` the stamp; one whose is not
    has to be looked at."""
    if busy:
        return ("true", str(epoch), claim_id, org, "true", "false")
    return ("false", str(epoch), claim_id, org, None, "true")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the driver saw it."""

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
    # Why it does not start or how it ended, in the driver's words; exit code if it has ended.
    trouble: str = ""
    unschedulable: bool = False
    exit_code: int | None = None
    # Why it will not stay although nobody has asked for its end yet: chosen for eviction, or its node is being taken away.
    leaving: str = ""

    @property
    def profile(self) -> str:
        return self.labels.get(LABEL_PROFILE, "")

    @property
    def role(self) -> str:
        return self.labels.get(LABEL_ROLE, PodRole.WORKER)

    @property
    def ever_stamped(self) -> bool:
        """Whether any holder's name was ever on it."""
        return NOTE_ORG in self.annotations

    @property
    def epoch(self) -> int:
        """The epoch that was last stamped on it; -1 if none can be read."""
        text = self.annotations.get(NOTE_EPOCH, "")
        return int(text) if text.isdigit() else -1

    @property
    def protected(self) -> bool:
        """Whether its metadata tells others to leave it alone."""
        return NOTE_DO_NOT_DISRUPT in self.annotations or self.labels.get(LABEL_BUSY) == "true"

    @property
    def usable(self) -> bool:
        """Whether it may be handed out as far as the driver can tell."""
        return self.ready and self.phase is PodPhase.RUNNING and not (self.terminating or self.leaving)

    @property
    def signature(self) -> Signature:
        """What of its metadata a stamp would write, as it is."""
        return (self.labels.get(LABEL_BUSY), *map(self.annotations.get, _STAMPED_NOTES))

    def says(self, stamp: Stamp) -> bool:
        """Whether its metadata already says what `stamp` would write."""
        return all(self.labels.get(k) == v for k, v in stamp.labels().items()) and all(
            self.annotations.get(k) == v for k, v in stamp.annotations().items()
        )


class ObservedEvent(Sequence[Pod]):
    """Many pods as they were told, by name. Their ages change without a word about them, and are worked out for those that are looked at: who
    judges 100,000 by what they say pays for what they say."""

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
    """All pods of this pool at one moment. `anchored`: a consistent read that also returned the anchor object, so that an
    empty list means that there are none."""

    pods: Sequence[Pod]
    anchored: bool
    age_s: float = 0.0

    def named(self) -> Mapping[str, Pod]:
        """The same pods by name, as they were told: only `aged` says how old one is."""
        return self.pods.named if isinstance(self.pods, ObservedEvent) else {p.name: p for p in self.pods}

    def aged(self, pod: Pod) -> Pod:
        """One of `named`, with its age."""
        return self.pods.aged(pod) if isinstance(self.pods, ObservedEvent) else pod


class StampResult(StrEnum):
    """What became of a stamp."""

    WRITTEN = "written"
    CONFLICT = "conflict"
    TERMINATING = "terminating"
    GONE = "gone"


class Word(StrEnum):
    """A worker's own word about itself."""

    BUSY = "busy"
    UNUSED = "unused"
    SILENT = "silent"


class Driver(Protocol):
    """What makes, shows and removes pods."""

    def create(self, spec: PodSpec) -> Pod:
        """Make the pod and its companions. A pod of that name that we made before is returned as it is; one whose
        companions are missing gets them. Does not wait for readiness."""

    def delete(self, name: str, uid: str, *, grace_s: int | None = None) -> None:
        """Ask for the pod's end, with its companions. Returns once accepted. No such pod, or another uid under that name,
        is success. An empty uid means whatever has that name. Repeating it never lengthens the grace."""

    def read(self, name: str) -> Pod | None:
        """One pod, read consistently."""

    def list(self) -> Listing:
        """All pods of this pool, read consistently. Raises rather than return a part."""

    def cached(self) -> Listing:
        """All pods as last observed, without any call; `age_s` says how old that is."""

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        """What happens to pods from now on, starting with each one that exists, until `stop` is set. A pod's end
        is told as `Gone`. May repeat itself; never leaves out the newest state of a pod."""

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        """Write the stamp if the pod is still at `pod.version`."""

    def word(self, pod: Pod) -> Word:
        """What the worker itself says of its sessions. A container that has ended is unused; one that can not be asked is silent."""

    def companions(self) -> tuple[str, ...]:
        """The names of pods for which companion objects exist."""

    def delete_companions(self, name: str) -> None:
        """Remove the companions of a pod that is no more. None there is success."""

    def close(self) -> None:
        """Let go of connections and threads; pods stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A pod that was there and is no more."""

    name: str
    uid: str
