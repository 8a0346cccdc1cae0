"""The Kubernetes driver: implements `pool.drivers.port` with one API server.

Any process may act on any pod; none owns one. The API server decides: names are unique, stamps
apply to one version, deletions to one uid.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

from pool.core.clock import Clock
from pool.core.errors import InvalidInput, Refused, Transient
from pool.core.names import DNS_LABEL, DNS_LABEL_RULE
from pool.core.settings import KubernetesSettings, Profile
from pool.core.threads import Threads
from pool.drivers.kubernetes import changes, decoding, manifests
from pool.drivers.kubernetes.anchor import Anchor
from pool.drivers.kubernetes.api import CONFLICT, NOT_FOUND, ApiCall, KubeApi
from pool.drivers.kubernetes.companions import Companions
from pool.drivers.kubernetes.decoding import Known
from pool.drivers.kubernetes.following import Follower, WatchSource
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.kubernetes.nodes import Node
from pool.drivers.kubernetes.pods import PodCache
from pool.drivers.kubernetes.pulse import Pulse
from pool.drivers.kubernetes.rights import Right
from pool.drivers.port import (
    LABEL_POOL,
    LABEL_WORKER,
    NOTE_REVISION,
    Gone,
    Listing,
    Pod,
    PodPhase,
    PodRole,
    PodSpec,
    Stamp,
    StampResult,
    Word,
)
from pool.drivers.self_report import read_self_report

# How long a watch without events takes to notice that it should stop.
_STOP_WITHIN_S = 0.2


class KubernetesDriver:
    """The pods of one pool in one namespace."""

    def __init__(
        self, api: KubeApi, settings: KubernetesSettings, profiles: Mapping[str, Profile], *, clock: Clock,
        call_timeout_s: float, threads: Threads,
    ) -> None:  # fmt: skip
        self._api = api
        self._settings = settings
        self._profiles = profiles
        self._clock = clock
        self._call_timeout_s = call_timeout_s
        self._anchor = Anchor(api, settings)
        accounts = any(p.own_service_account for p in profiles.values())
        self._companions = Companions(api, settings, threads, with_accounts=accounts)
        self._cache = PodCache(api.age_s)
        self._selected: Mapping[str, str | int] = {"labelSelector": manifests.selector(settings)}
        self._pods = Follower(
            api, _pods_of(self._selected), self._cache, threads=threads, relist_s=settings.relist_s
        )
        self._nodes = Follower(api, _NODES, self._cache.on_nodes, threads=threads, relist_s=settings.relist_s)
        self._pulse = Pulse(api, self._anchor.is_there, threads=threads)
        self._following = threading.Event()
        self._listed = (Listing(pods=(), anchored=False), -math.inf)

    def create(self, spec: PodSpec) -> Pod:
        _check(spec.name)
        profile = self._profiles.get(spec.profile)
        if profile is None:
            raise Refused("unknown_profile", detail=f"no profile {spec.profile}")
        place = PodPlace(settings=self._settings, anchor_uid=self._anchor.uid())
        account = profile.own_service_account and spec.role is PodRole.WORKER
        manifest = manifests.pod(spec, profile, place)
        if account:
            self._companions.prepare(spec, place)
        known = self._made(spec, manifest)
        if not known.pod.terminating:
            self._companions.complete(spec, known.pod.uid, account=account)
        return self._cache.shown(known)

    def delete(self, name: str, uid: str, *, grace_s: int | None = None) -> None:
        _check(name)
        # It is a success if the pod does not exist or has another uid. Companions are deleted by
        # garbage collection.
        options = changes.deletion(uid, grace_s)
        self._api.call(ApiCall(right=Right.DELETE_PODS, name=name, body=options))

    def read(self, name: str) -> Pod | None:
        known = self._read(name)
        return None if known is None else self._cache.shown(known)

    def recent(self, name: str) -> Pod | None:
        return self._cache.get(name)

    def list(self) -> Listing:
        began = self._clock.monotonic()
        call = ApiCall(right=Right.LIST_PODS, query=self._selected)
        anchored = self._anchor.is_there()
        known = [item for page in self._api.pages(call, decoding.pods) for item in page.items]
        # The anchor is read before and after the list: a namespace that was deleted meanwhile must
        # not count as empty.
        anchored = anchored and (bool(known) or self._anchor.is_there())
        listing = Listing(pods=tuple(self._cache.shown(k) for k in known), anchored=anchored)
        self._listed = (listing, began)
        return listing

    def cached(self) -> Listing:
        listing, at = self._listed
        listed_age_s, told_age_s = self._clock.monotonic() - at, self._pods.age_s()
        if told_age_s <= listed_age_s and told_age_s < math.inf:
            # The list comes from the server's cache, so it is no proof that there are no pods.
            listing = Listing(pods=self._cache.pods(), anchored=False)
            listed_age_s = told_age_s
        return replace(listing, age_s=listed_age_s, nodes_age_s=self._nodes.age_s())

    def watch(self, stop: threading.Event) -> Iterator[Pod | Gone]:
        with self._cache.listening() as news:
            self._pods.start()
            self._nodes.start()
            self._pulse.start()
            self._following.set()
            while not stop.is_set():
                yield from news.take(_STOP_WITHIN_S)

    def stamp(self, pod: Pod, stamp: Stamp) -> StampResult:
        if pod.terminating:
            return StampResult.TERMINATING
        if pod.says(stamp):
            return self._standing(pod)
        patch = changes.stamp(stamp, version=pod.version, first=not pod.ever_stamped)
        answer = self._api.call(ApiCall(right=Right.PATCH_PODS, name=pod.name, body=patch))
        if answer.status == NOT_FOUND:
            return StampResult.GONE
        if answer.status == CONFLICT:
            found = self._standing(pod)
            return StampResult.CONFLICT if found is StampResult.WRITTEN else found
        return StampResult.WRITTEN

    def word(self, pod: Pod) -> Word:
        now = self._read(pod.name)
        if now is None or now.pod.uid != pod.uid or now.pod.phase is PodPhase.ENDED:
            return Word.UNUSED
        endpoint = now.pod.endpoint
        if not endpoint:
            return Word.SILENT
        return read_self_report(endpoint, timeout_s=self._call_timeout_s, clock=self._clock)

    def companions(self) -> tuple[str, ...]:
        return self._companions.names(following=self._following.is_set())

    def delete_companions(self, name: str) -> None:
        if self._read(name) is None:
            self._companions.delete(name)

    def close(self) -> None:
        # First, so that no follower waits for the retry of a call.
        self._api.close()
        for follower in (self._pods, self._nodes, self._companions, self._pulse):
            follower.close()

    def _made(self, spec: PodSpec, manifest: manifests.Manifest) -> Known:
        """Return the pod of that name, created now or by an earlier attempt."""
        answer = self._api.call(ApiCall(right=Right.CREATE_PODS, body=manifest))
        if answer.ok:
            return decoding.pod(answer.body)
        if answer.status == NOT_FOUND:
            raise Refused("invalid", detail=f"namespace {self._api.namespace} does not exist")
        known = self._read(spec.name)
        if known is None:
            raise Transient(f"pod {spec.name} was deleted while it was read: {_message(answer.body)}")
        self._refuse_foreign(spec, known.pod)
        return known

    def _refuse_foreign(self, spec: PodSpec, there: Pod) -> None:
        ours = {LABEL_WORKER: spec.name, LABEL_POOL: self._settings.anchor}
        is_ours = ours.items() <= there.labels.items()
        if not is_ours or there.annotations.get(NOTE_REVISION) != spec.revision:
            raise Refused("invalid", detail=f"a pod named {spec.name} exists and is not this worker's")

    def _standing(self, pod: Pod) -> StampResult:
        """Return WRITTEN if the pod is still as it was observed."""
        now = self._read(pod.name)
        if now is None or now.pod.uid != pod.uid:
            return StampResult.GONE
        if now.pod.terminating:
            return StampResult.TERMINATING
        return StampResult.WRITTEN if now.pod.version == pod.version else StampResult.CONFLICT

    def _read(self, name: str) -> Known | None:
        _check(name)
        answer = self._api.call(ApiCall(right=Right.GET_PODS, name=name))
        return None if answer.status == NOT_FOUND else decoding.pod(answer.body)


_NODES: WatchSource[Node] = WatchSource(
    list_right=Right.LIST_NODES,
    watch_right=Right.WATCH_NODES,
    page=decoding.nodes,
    one=decoding.node,
    query={},
)


def _pods_of(selected: Mapping[str, str | int]) -> WatchSource[Known]:
    return WatchSource(
        list_right=Right.LIST_PODS,
        watch_right=Right.WATCH_PODS,
        page=decoding.pods,
        one=decoding.pod,
        query=selected,
    )


def _message(body: bytes) -> str:
    return decoding.status(body).message


def _check(name: str) -> None:
    if not DNS_LABEL.fullmatch(name):
        raise InvalidInput("name", f"must be {DNS_LABEL_RULE}; got {name!r}")
