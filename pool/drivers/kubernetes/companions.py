"""Companions: the Secret with a worker's key, and a ServiceAccount if the profile has
`own_service_account`. They have the name of the pod and are deleted with it.
"""

from __future__ import annotations

import threading

from pool.core.errors import Refused, Transient
from pool.core.settings import KubernetesSettings
from pool.core.threads import Threads
from pool.drivers.kubernetes import changes, decoding, manifests
from pool.drivers.kubernetes.api import CONFLICT, METADATA, METADATA_LIST, NOT_FOUND, ApiCall, KubeApi
from pool.drivers.kubernetes.following import Follower, WatchSource
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.kubernetes.rights import Right
from pool.drivers.kubernetes.wire import Meta
from pool.drivers.port import PodSpec

# A cache older than this is not used; the objects are listed instead.
_FRESH_S = 15.0


class Companions:
    """The companions of all pods of one pool."""

    def __init__(
        self, api: KubeApi, settings: KubernetesSettings, threads: Threads, *, with_accounts: bool
    ) -> None:
        self._api = api
        self._settings = settings
        self._with_accounts = with_accounts
        self._names = _Names()
        self._secrets: WatchSource[Meta] = WatchSource(
            list_right=Right.LIST_SECRETS,
            watch_right=Right.WATCH_SECRETS,
            page=decoding.metas,
            one=decoding.meta,
            query={"labelSelector": manifests.selector(settings)},
            accept_list=METADATA_LIST,
            accept=METADATA,
        )
        self._follower = Follower(
            api, self._secrets, self._names, threads=threads, relist_s=settings.relist_s
        )

    def prepare(self, spec: PodSpec, place: PodPlace) -> None:
        """Create what must exist before the pod: the API server rejects a pod whose ServiceAccount
        is missing.
        """
        self._api.call(
            ApiCall(right=Right.CREATE_SERVICEACCOUNTS, body=manifests.service_account(spec, place))
        )

    def complete(self, spec: PodSpec, pod_uid: str, *, account: bool) -> None:
        """Create the companions that a pod lacks. Companions of a previous pod of that name get
        this pod as owner.
        """
        if spec.secret:
            self._give_secret(spec, pod_uid)
        if account:
            patch = changes.owned_by_pod(spec.name, pod_uid)
            self._api.call(ApiCall(right=Right.PATCH_SERVICEACCOUNTS, name=spec.name, body=patch))

    def names(self, *, following: bool) -> tuple[str, ...]:
        """Return the names of pods that have companions. While pods are watched, Secrets are too,
        and this makes no call.
        """
        if following and not self._with_accounts:
            self._follower.start()
            if self._follower.age_s() < _FRESH_S:
                return self._names.all()
        found = self._listed(Right.LIST_SECRETS)
        if self._with_accounts:
            found |= self._listed(Right.LIST_SERVICEACCOUNTS)
        return tuple(sorted(found))

    def delete(self, name: str) -> None:
        """Delete the companions of a pod. It is a success if there are none."""
        self._api.call(ApiCall(right=Right.DELETE_SECRETS, name=name, body=changes.deletion("", None)))
        if self._with_accounts:
            gone = changes.deletion("", None)
            self._api.call(ApiCall(right=Right.DELETE_SERVICEACCOUNTS, name=name, body=gone))

    def close(self) -> None:
        self._follower.close()

    def _give_secret(self, spec: PodSpec, pod_uid: str) -> None:
        wanted = manifests.secret(spec, pod_uid, self._settings)
        made = self._api.call(ApiCall(right=Right.CREATE_SECRETS, body=wanted, accept=METADATA))
        if made.status == NOT_FOUND:
            raise Refused("invalid", detail=f"namespace {self._api.namespace} does not exist")
        if made.status != CONFLICT:
            return
        there = self._api.call(ApiCall(right=Right.GET_SECRETS, name=spec.name, accept=METADATA))
        if there.status == NOT_FOUND:
            raise Transient(f"the Secret of {spec.name} was deleted while it was read")
        if pod_uid not in {owner.uid for owner in decoding.meta(there.body).owner_references}:
            self._api.call(ApiCall(right=Right.PATCH_SECRETS, name=spec.name, body=wanted, accept=METADATA))

    def _listed(self, right: Right) -> set[str]:
        call = ApiCall(right=right, query=self._secrets.query, accept=METADATA_LIST)
        return {item.name for page in self._api.pages(call, decoding.metas) for item in page.items}


class _Names:
    """A `Sink` that stores names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: set[str] = set()

    def all(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._there))

    def replace(self, items: list[Meta]) -> None:
        with self._lock:
            self._there = {item.name for item in items}

    def put(self, item: Meta) -> None:
        with self._lock:
            self._there.add(item.name)

    def drop(self, item: Meta) -> None:
        with self._lock:
            self._there.discard(item.name)
