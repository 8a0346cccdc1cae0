"""A driver whose pods are entries in a dict: a second implementation of the driver port, which
passes the same contract suite as the real ones (`tests/integration/test_podless_driver.py`). The
test decides when a pod becomes ready, ends or is deleted, and which calls are refused.
"""

from __future__ import annotations

import itertools
import math
import queue
import re
import threading
from collections.abc import Iterator
from dataclasses import replace

from pool.core.clock import SystemClock
from pool.core.errors import Forbidden, InvalidInput, Refused, Transient
from pool.drivers.port import (
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_REVISION,
    Gone,
    Listing,
    Pod,
    PodPhase,
    PodSpec,
    Stamp,
    StampResult,
    Word,
)

_NEUTRAL = Stamp(org=None, claim_id=None, epoch=0, busy=False)
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_GRACE_S = 30.0


class PodlessCluster:
    """The state that all its drivers share: the pods and their companions."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.secrets: dict[str, str] = {}
        self.words: dict[str, Word] = {}
        self.down = False
        self.lock = threading.RLock()
        # The grace period of each pod and, for terminating ones, the time that is left.
        self.graces_s: dict[str, float] = {}
        self.left_s: dict[str, float] = {}
        self.listeners: list[queue.SimpleQueue[Pod | Gone]] = []
        self._uids = itertools.count(1)
        self._versions = itertools.count(1)

    def next_uid(self) -> str:
        return f"uid-{next(self._uids)}"

    def put(self, pod: Pod) -> None:
        with self.lock:
            self.pods[pod.name] = replace(pod, version=str(next(self._versions)))
            self.tell(self.pods[pod.name])

    def tell(self, news: Pod | Gone) -> None:
        for listener in self.listeners:
            listener.put(news)

    def told_to_end(self, pod: Pod, grace_s: float | None) -> None:
        """Delete at once a container that has ended or is unused; one that is busy or ignores
        SIGTERM has its grace period.
        """
        wanted_s = self.graces_s.get(pod.name, _DEFAULT_GRACE_S) if grace_s is None else grace_s
        left_s = min(wanted_s, self.left_s.get(pod.name, math.inf))
        lingers = pod.phase is PodPhase.RUNNING and self.words.get(pod.name, Word.UNUSED) is not Word.UNUSED
        if not lingers or left_s <= 0:
            self.take_away(pod.name)
            return
        self.left_s[pod.name] = left_s
        if not pod.terminating:
            self.put(replace(pod, terminating=True))

    def take_away(self, name: str, *, companions: bool = True) -> None:
        with self.lock:
            pod = self.pods.pop(name)
            self.left_s.pop(name, None)
            self.words.pop(name, None)
            if companions:
                self.secrets.pop(name, None)
            self.tell(Gone(name=name, uid=pod.uid))

    def grow_older(self, seconds: float) -> None:
        """Let time pass for all pods, and for the grace periods of terminating ones."""
        with self.lock:
            self.pods = {n: replace(p, age_s=p.age_s + seconds) for n, p in self.pods.items()}
            for name in list(self.left_s):
                self.left_s[name] -= seconds
                if name in self.pods:
                    self.told_to_end(self.pods[name], None)


class PodlessDriver:
    """Pods without processes. Created alone it has its own cluster, and watches it from the start."""

    def __init__(self, cluster: PodlessCluster | None = None) -> None:
        self.cluster = cluster or PodlessCluster()
        self.calls: list[tuple[str, str]] = []
        # What pods were made from, in the order in which they were made.
        self.specs: list[PodSpec] = []
        self.anchored = True
        self.age_s = 0.0
        self.nodes_age_s = 0.0
        self.refuses_to_create = ""
        # Calls that the cluster refuses, as (verb, pod), and verbs without any permission.
        self.denied: set[tuple[str, str]] = set()
        self.unanswered: set[tuple[str, str]] = set()
        self.forbidden: set[str] = set()
        self._clock = SystemClock()
        self._listed = (Listing(pods=(), anchored=False), -math.inf)
        self._following = 0 if cluster else 1
        self._news: queue.SimpleQueue[Pod | Gone] = queue.SimpleQueue()
        self.cluster.listeners.append(self._news)

    @property
    def pods(self) -> dict[str, Pod]:
        return self.cluster.pods

    @pods.setter
    def pods(self, pods: dict[str, Pod]) -> None:
        self.cluster.pods = pods

    @property
    def secrets(self) -> dict[str, str]:
        return self.cluster.secrets

    @secrets.setter
    def secrets(self, secrets: dict[str, str]) -> None:
        self.cluster.secrets = secrets

    @property
    def words(self) -> dict[str, Word]:
        return self.cluster.words

    @words.setter
    def words(self, words: dict[str, Word]) -> None:
        self.cluster.words = words

    @property
    def down(self) -> bool:
        return self.cluster.down

    @down.setter
    def down(self, down: bool) -> None:
        self.cluster.down = down

    # The port.

    def create(self, spec: PodSpec) -> Pod:
        self._called("create", spec.name)
        if not _NAME.fullmatch(spec.name):
            raise InvalidInput("name", "takes 1 to 63 lower-case letters, digits and inner dashes")
        if self.refuses_to_create:
            raise Transient(self.refuses_to_create)
        with self.cluster.lock:
            if spec.secret:
                self.secrets.setdefault(spec.name, spec.secret)
            if spec.name not in self.pods:
                self.specs.append(spec)
                self.cluster.graces_s[spec.name] = spec.grace_s
                labels = {LABEL_WORKER: spec.name, LABEL_PROFILE: spec.profile, LABEL_ROLE: str(spec.role)}
                self.cluster.put(
                    Pod(
                        name=spec.name,
                        uid=self.cluster.next_uid(),
                        version="",
                        phase=PodPhase.PENDING,
                        ready=False,
                        terminating=False,
                        image=spec.image,
                        labels=labels | _set(_NEUTRAL.labels()),
                        annotations={NOTE_REVISION: spec.revision} | _set(_NEUTRAL.annotations()),
                    )
                )
            return self.pods[spec.name]

    def delete(self, name: str, uid: str, *, grace_s: int | None = None) -> None:
        self._called("delete", name)
        with self.cluster.lock:
            pod = self.pods.get(name)
            if pod is not None and uid in ("", pod.uid):
                self.cluster.told_to_end(pod, grace_s)

    def read(self, name: str) -> Pod | None:
        self._called("read", name)
        return self.pods.get(name)

    def recent(self, name: str) -> Pod | None:
        return self.pods.get(name) if self._following else None

    def list(self) -> Listing:
        self._called("list", "")
        listing = Listing(pods=tuple(self.pods.values()), anchored=self.anchored)
        self._listed = (listing, self._clock.monotonic())
        return listing

    def cached(self) -> Listing:
        if self._following:
            listing, age_s = Listing(pods=tuple(self.pods.values()), anchored=self.anchored), self.age_s
        else:
            listing, at = self._listed
            age_s = self._clock.monotonic() - at
        return replace(listing, age_s=age_s, nodes_age_s=self.nodes_age_s)

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        news: queue.SimpleQueue[Pod | Gone] = queue.SimpleQueue()
        with self.cluster.lock:
            self.cluster.listeners.append(news)
            self._following += 1
            there = list(self.pods.values())
        try:
            yield from there
            while not stop.is_set():
                try:
                    yield news.get(timeout=0.02)
                except queue.Empty:
                    continue
        finally:
            with self.cluster.lock:
                self.cluster.listeners.remove(news)
                self._following -= 1

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        self._called("stamp", pod.name)
        with self.cluster.lock:
            now = self.pods.get(pod.name)
            if now is None or now.uid != pod.uid:
                return StampResult.GONE
            if now.terminating:
                return StampResult.TERMINATING
            if now.version != pod.version:
                return StampResult.CONFLICT
            if not now.says(stamp):
                labels = _set({**now.labels, **stamp.labels()})
                annotations = _set({**now.annotations, **stamp.annotations()})
                self.cluster.put(replace(now, labels=labels, annotations=annotations))
            return StampResult.WRITTEN

    def word(self, pod: Pod) -> Word:
        self._called("word", pod.name)
        now = self.pods.get(pod.name)
        if now is None or now.uid != pod.uid or now.phase is PodPhase.ENDED:
            return Word.UNUSED
        # A pod without an address cannot be reached.
        return self.words.get(pod.name, Word.UNUSED) if now.endpoint else Word.SILENT

    def companions(self) -> tuple[str, ...]:
        self._called("companions", "")
        return tuple(self.secrets)

    def delete_companions(self, name: str) -> None:
        self._called("delete_companions", name)
        if name not in self.pods:
            self.secrets.pop(name, None)

    def close(self) -> None:
        """Pods stay."""
        with self.cluster.lock:
            if self._news in self.cluster.listeners:
                self.cluster.listeners.remove(self._news)

    # Events of pods.

    def become_ready(self, name: str, endpoint: str = "") -> None:
        self.change(
            name,
            phase=PodPhase.RUNNING,
            ready=True,
            endpoint=endpoint or f"http://{name}:8080",
            node="node-1",
        )

    def change(self, name: str, **changes: object) -> None:
        self.cluster.put(replace(self.pods[name], **changes))  # type: ignore[arg-type]

    def take_away(self, name: str, *, companions: bool = True) -> None:
        self.cluster.take_away(name, companions=companions)

    def grow_older(self, seconds: float) -> None:
        """Let time pass for all pods."""
        self.cluster.grow_older(seconds)

    def tell_again(self) -> None:
        """A watch that restarts reports every existing pod; deletions in between are not reported."""
        self.drain_events()
        for pod in self.pods.values():
            self._news.put(pod)

    def drain_events(self) -> tuple[Pod | Gone, ...]:
        events: list[Pod | Gone] = []
        while not self._news.empty():
            events.append(self._news.get())
        return tuple(events)

    def _called(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if self.down:
            raise Transient("the cluster cannot be reached")
        if verb in self.forbidden:
            raise Forbidden("forbidden", detail=f"may not {verb} pods: User cannot {verb} resource")
        if (verb, name) in self.denied:
            raise Refused("forbidden", detail=f"admission denied {verb} of {name}")
        if (verb, name) in self.unanswered:
            raise Transient(f"no answer to {verb} of {name}")


def _set(wanted: dict[str, str | None]) -> dict[str, str]:
    return {k: v for k, v in wanted.items() if v is not None}
