"""A driver whose pods are entries in a dict: a second implementation of the driver port, which passes the same contract suite as the real
ones. The test says when a pod becomes ready, dies or is taken away."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace

from pool.drivers.port import (
    LABEL_PROFILE,
    LABEL_ROLE,
    LABEL_WORKER,
    NOTE_REVISION,
    Gone,
    Listing,
    Phase,
    Pod,
    PodSpec,
    Stamp,
    StampResult,
    Word,
)
from pool.errors import Transient

_NEUTRAL = Stamp(org=None, claim_id=None, epoch=0, busy=False)


class PodlessDriver:
    """Pods without processes."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.secrets: dict[str, str] = {}
        self.words: dict[str, Word] = {}
        self.calls: list[tuple[str, str]] = []
        self.down = False
        self.anchored = True
        self.age_s = 0.0
        self.refuses_to_create = ""
        self._uids = itertools.count(1)
        self._versions = itertools.count(1)
        self._events: list[Pod | Gone] = []
        self._lock = threading.RLock()

    # The port.

    def create(self, spec: PodSpec) -> Pod:
        self._called("create", spec.name)
        if self.refuses_to_create:
            raise Transient(self.refuses_to_create)
        with self._lock:
            if spec.secret:
                self.secrets.setdefault(spec.name, spec.secret)
            if spec.name not in self.pods:
                labels = {LABEL_WORKER: spec.name, LABEL_PROFILE: spec.profile, LABEL_ROLE: str(spec.role)}
                self._put(
                    Pod(
                        name=spec.name,
                        uid=f"uid-{next(self._uids)}",
                        version="",
                        phase=Phase.PENDING,
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
        with self._lock:
            pod = self.pods.get(name)
            if pod is not None and uid in ("", pod.uid):
                self.take_away(name)

    def read(self, name: str) -> Pod | None:
        self._called("read", name)
        return self.pods.get(name)

    def list(self) -> Listing:
        self._called("list", "")
        return Listing(pods=tuple(self.pods.values()), anchored=self.anchored)

    def cached(self) -> Listing:
        return Listing(pods=tuple(self.pods.values()), anchored=self.anchored, age_s=self.age_s)

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        yield from list(self.pods.values())
        while not stop.wait(0.01):
            yield from self.drain_events()

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        self._called("stamp", pod.name)
        with self._lock:
            now = self.pods.get(pod.name)
            if now is None or now.uid != pod.uid:
                return StampResult.GONE
            if now.terminating:
                return StampResult.TERMINATING
            if now.version != pod.version:
                return StampResult.CONFLICT
            labels = _set({**now.labels, **stamp.labels()})
            annotations = _set({**now.annotations, **stamp.annotations()})
            self._put(replace(now, labels=labels, annotations=annotations))
            return StampResult.WRITTEN

    def word(self, pod: Pod) -> Word:
        self._called("word", pod.name)
        now = self.pods.get(pod.name)
        if now is None or now.phase is Phase.ENDED:
            return Word.UNUSED
        return self.words.get(pod.name, Word.UNUSED)

    def companions(self) -> tuple[str, ...]:
        self._called("companions", "")
        return tuple(self.secrets)

    def delete_companions(self, name: str) -> None:
        self._called("delete_companions", name)
        if name not in self.pods:
            self.secrets.pop(name, None)

    def close(self) -> None:
        """Nothing is open."""

    # What happens to pods.

    def become_ready(self, name: str, endpoint: str = "") -> None:
        self.change(
            name, phase=Phase.RUNNING, ready=True, endpoint=endpoint or f"http://{name}:8080", node="node-1"
        )

    def change(self, name: str, **changes: object) -> None:
        with self._lock:
            self._put(replace(self.pods[name], **changes))  # type: ignore[arg-type]

    def take_away(self, name: str, *, companions: bool = True) -> None:
        with self._lock:
            pod = self.pods.pop(name)
            if companions:
                self.secrets.pop(name, None)
            self._events.append(Gone(name=name, uid=pod.uid))

    def grow_older(self, seconds: float) -> None:
        """Time passes for all pods."""
        with self._lock:
            self.pods = {n: replace(p, age_s=p.age_s + seconds) for n, p in self.pods.items()}

    def tell_again(self) -> None:
        """A watch that begins anew tells every pod that is there; who went meanwhile is not told."""
        with self._lock:
            self._events = list(self.pods.values())

    def drain_events(self) -> list[Pod | Gone]:
        with self._lock:
            events, self._events = self._events, []
        return events

    def _put(self, pod: Pod) -> None:
        self.pods[pod.name] = replace(pod, version=str(next(self._versions)))
        self._events.append(self.pods[pod.name])

    def _called(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if self.down:
            raise Transient("the cluster can not be reached")


def _set(wanted: dict[str, str | None]) -> dict[str, str]:
    return {k: v for k, v in wanted.items() if v is not None}
