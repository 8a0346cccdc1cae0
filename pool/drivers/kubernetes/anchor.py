"""The anchor: a ConfigMap that owns all pods of a pool.

If it can be read next to an empty list, the list is empty because there are no pods, and not
because the driver looks in the wrong place.
"""

from __future__ import annotations

import threading

from pool.core.errors import Refused, Transient
from pool.core.settings import KubernetesSettings
from pool.drivers.kubernetes import decoding, manifests
from pool.drivers.kubernetes.api import CONFLICT, METADATA, NOT_FOUND, ApiCall, ApiResponse, KubeApi
from pool.drivers.kubernetes.rights import Right


class Anchor:
    """The anchor of one pool. It is created once, by the first process that needs it, and never
    recreated silently.
    """

    def __init__(self, api: KubeApi, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._lock = threading.Lock()
        self._uid = ""

    def uid(self) -> str:
        """Return its uid, for owner references."""
        with self._lock:
            if not self._uid:
                self._uid = self._read() or self._made()
            return self._uid

    def is_there(self) -> bool:
        """Return whether it can be read now."""
        self.uid()
        return bool(self._read())

    def _read(self) -> str:
        call = ApiCall(right=Right.GET_CONFIGMAPS, name=self._settings.anchor, accept=METADATA)
        answer = self._api.call(call)
        return "" if answer.status == NOT_FOUND else decoding.meta(answer.body).uid

    def _made(self) -> str:
        answer = self._make()
        if answer.status == NOT_FOUND:
            raise Refused("invalid", detail=f"namespace {self._api.namespace} does not exist")
        uid = self._read() if answer.status == CONFLICT else decoding.meta(answer.body).uid
        if not uid:
            raise Transient(f"the anchor {self._settings.anchor} was deleted while it was read")
        return uid

    def _make(self) -> ApiResponse:
        try:
            return self._api.call(
                ApiCall(right=Right.CREATE_CONFIGMAPS, body=manifests.anchor(self._settings), accept=METADATA)
            )
        except Refused as exc:
            missing = f"the anchor, ConfigMap {self._settings.anchor} in namespace {self._api.namespace}"
            raise Refused(
                exc.reason, detail=f"{missing}, does not exist and cannot be created: {exc.detail}"
            ) from exc
