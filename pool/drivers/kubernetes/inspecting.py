"""Inspect the cluster for `warmpool doctor`: missing rights, and objects that affect our pods.

Each read is preceded by an access review, so that no call is rejected. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pool.core.errors import Transient
from pool.core.settings import KubernetesSettings, Profile
from pool.drivers.kubernetes import cluster_policies, manifests
from pool.drivers.kubernetes.api import METADATA, NOT_FOUND, ApiCall, KubeApi
from pool.drivers.kubernetes.cluster_policies import AccessVerdict, Budget, NodePool, PriorityClass
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.kubernetes.rights import AnyRight, DoctorRight, Need, NotAllowed, Right
from pool.drivers.kubernetes.wire import ListOf
from pool.drivers.port import PodSpec, Stamp

T = TypeVar("T")

_MOST_NODEPOOLS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingRight:
    """A right that we do not have. If it is not vital, everything else works without it."""

    right: Right
    vital: bool
    said: str = ""


class Inspector:
    """One cluster, seen with our own credentials."""

    def __init__(self, api: KubeApi, settings: KubernetesSettings, profiles: Mapping[str, Profile]) -> None:
        self._api = api
        self._settings = settings
        self._profiles = profiles
        self.namespace = api.namespace

    def may(self, asked: AnyRight, name: str = "") -> AccessVerdict:
        """Return the decision of the API server whether we have a right."""
        what = {
            "namespace": "" if asked.of_the_cluster else self.namespace,
            "verb": asked.verb,
            "group": asked.group.partition("/")[0],
            "resource": asked.resource,
            "name": name,
        }
        body = {
            "apiVersion": DoctorRight.REVIEW_OUR_ACCESS.group,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in what.items() if value}},
        }
        answer = self._api.call(ApiCall(right=DoctorRight.REVIEW_OUR_ACCESS, body=body))
        if not answer.ok:
            raise Transient(f"the API server did not answer an access review: {answer.status}")
        return _read(cluster_policies.REVIEW, answer.body).status

    def missing_rights(self) -> tuple[MissingRight, ...]:
        """Return the rights that this configuration needs and that are not granted."""
        return tuple(self._missing_rights())

    def _missing_rights(self) -> Iterator[MissingRight]:
        accounts = any(p.own_service_account for p in self._profiles.values())
        anchored = False
        for right in Right:
            if (right.need is Need.ACCOUNTS and not accounts) or (right.need is Need.ANCHOR and anchored):
                continue
            anchor = right is Right.GET_CONFIGMAPS
            verdict = self.may(right, self._settings.anchor if anchor else "")
            if not verdict.allowed:
                said = verdict.evaluation_error or verdict.reason
                yield MissingRight(right=right, vital=right.need is not Need.NODES, said=said)
                # If we may not read the anchor, we cannot know whether it must be created.
                anchored = anchored or anchor
            elif anchor:
                anchored = self._anchor_is_there()

    def _anchor_is_there(self) -> bool:
        call = ApiCall(right=Right.GET_CONFIGMAPS, name=self._settings.anchor, accept=METADATA)
        return self._api.call(call).status != NOT_FOUND

    def priorities(self) -> dict[str, PriorityClass]:
        """Return all PriorityClasses by name."""
        return {
            c.metadata.name: c
            for c in self._listed(DoctorRight.LIST_PRIORITYCLASSES, cluster_policies.PRIORITIES)
        }

    def budgets(self) -> list[Budget]:
        """Return the PodDisruptionBudgets in the namespace of our pods."""
        return self._listed(DoctorRight.LIST_BUDGETS, cluster_policies.BUDGETS)

    def nodepools(self) -> list[NodePool]:
        """Return Karpenter's NodePools, at most `_MOST_NODEPOOLS`; none if there is no Karpenter."""
        try:
            return self._listed(DoctorRight.LIST_NODEPOOLS, cluster_policies.NODEPOOLS, limit=_MOST_NODEPOOLS)
        except NotAllowed:
            if self._api.call(ApiCall(right=DoctorRight.DISCOVER_KARPENTER)).status == NOT_FOUND:
                return []
            raise

    def labels(self, profile: Profile, stamp: Stamp) -> dict[str, str]:
        """Return the labels of a worker's pod with that stamp."""
        spec = PodSpec(
            name="w", profile=profile.name, revision="", image=profile.image, cpu_millicores=1, memory_mib=1,
            port=profile.port, grace_s=profile.grace_s,
        )  # fmt: skip
        made = manifests.pod(spec, profile, PodPlace(settings=self._settings, anchor_uid="none"))
        stamped = {key: value for key, value in stamp.labels().items() if value is not None}
        return {**made["metadata"]["labels"], **stamped}

    def now_s(self) -> float:
        """Return the time of the API server's clock, to the second."""
        self.may(Right.LIST_PODS)
        told = self._api.now_s()
        if told is None:
            raise Transient("the API server did not return its time")
        return told

    def close(self) -> None:
        self._api.close()

    def _listed(self, look: DoctorRight, decoder: msgspec.json.Decoder[ListOf[T]], **query: int) -> list[T]:
        if not self.may(look).allowed:
            where = "" if look.of_the_cluster else f" in namespace {self.namespace}"
            raise NotAllowed(f"we may not {look.verb} {look.resource}{where}")
        answer = self._api.call(ApiCall(right=look, query=query))
        return (_read(decoder, answer.body).items or []) if answer.ok else []


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise Transient(f"cannot decode the API server's answer: {exc}") from exc
