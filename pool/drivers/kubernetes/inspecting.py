"""A look at the cluster for a check-up: which of our rights are missing, and what stands around our pods. It asks whether it may look before it does, so that
nothing is refused; it writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pool.core.errors import Transient
from pool.core.settings import KubernetesSettings, Profile
from pool.drivers.kubernetes import around, manifests
from pool.drivers.kubernetes.api import METADATA, NOT_FOUND, ApiCall, KubeApi
from pool.drivers.kubernetes.around import Budget, NodePool, PriorityClass, SurroundingsVerdict
from pool.drivers.kubernetes.manifests import PodPlace
from pool.drivers.kubernetes.rights import Asked, Look, Need, NotAllowed, Right
from pool.drivers.kubernetes.wire import ListOf
from pool.drivers.port import PodSpec, Stamp

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """A right that we do not have. Without one that is not vital the rest works."""

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

    def may(self, asked: Asked, name: str = "") -> SurroundingsVerdict:
        """Whether we have a right, in the words of the API server."""
        what = {
            "namespace": "" if asked.of_the_cluster else self.namespace,
            "verb": asked.verb,
            "group": asked.group.partition("/")[0],
            "resource": asked.resource,
            "name": name,
        }
        body = {
            "apiVersion": Look.REVIEW_OUR_ACCESS.group,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in what.items() if value}},
        }
        answer = self._api.call(ApiCall(right=Look.REVIEW_OUR_ACCESS, body=body))
        if not answer.ok:
            raise Transient(f"the API server does not say what we may do: {answer.status}")
        return _read(around.REVIEW, answer.body).status

    def lacking(self) -> tuple[Lack, ...]:
        """What `rights` lists, is needed by this configuration, and is not granted."""
        return tuple(self._lacking())

    def _lacking(self) -> Iterator[Lack]:
        accounts = any(p.own_service_account for p in self._profiles.values())
        anchored = False
        for right in Right:
            if (right.need is Need.ACCOUNTS and not accounts) or (right.need is Need.ANCHOR and anchored):
                continue
            anchor = right is Right.GET_CONFIGMAPS
            verdict = self.may(right, self._settings.anchor if anchor else "")
            if not verdict.allowed:
                said = verdict.evaluation_error or verdict.reason
                yield Lack(right=right, vital=right.need is not Need.NODES, said=said)
                # Who may not look for the anchor can not tell whether it has to be made.
                anchored = anchored or anchor
            elif anchor:
                anchored = self._anchor_is_there()

    def _anchor_is_there(self) -> bool:
        call = ApiCall(right=Right.GET_CONFIGMAPS, name=self._settings.anchor, accept=METADATA)
        return self._api.call(call).status != NOT_FOUND

    def priorities(self) -> dict[str, PriorityClass]:
        """All PriorityClasses by name."""
        return {c.metadata.name: c for c in self._listed(Look.LIST_PRIORITYCLASSES, around.PRIORITIES)}

    def budgets(self) -> list[Budget]:
        """The budgets beside our pods."""
        return self._listed(Look.LIST_BUDGETS, around.BUDGETS)

    def nodepools(self) -> list[NodePool]:
        """Karpenter's; none where there is no Karpenter."""
        return self._listed(Look.LIST_NODEPOOLS, around.NODEPOOLS)

    def labels(self, profile: Profile, stamp: Stamp) -> dict[str, str]:
        """The labels of a worker's pod with that stamp."""
        spec = PodSpec(
            name="w", profile=profile.name, revision="", image=profile.image, cpu_millicores=1, memory_mib=1,
            port=profile.port, grace_s=profile.grace_s,
        )  # fmt: skip
        made = manifests.pod(spec, profile, PodPlace(settings=self._settings, anchor_uid="none"))
        stamped = {key: value for key, value in stamp.labels().items() if value is not None}
        return {**made["metadata"]["labels"], **stamped}

    def now_s(self) -> float:
        """What the API server's clock shows, to the second."""
        self.may(Right.LIST_PODS)
        told = self._api.now_s()
        if told is None:
            raise Transient("the API server does not say what time it is")
        return told

    def close(self) -> None:
        self._api.close()

    def _listed(self, look: Look, decoder: msgspec.json.Decoder[ListOf[T]]) -> list[T]:
        if not self.may(look).allowed:
            where = "" if look.of_the_cluster else f" in namespace {self.namespace}"
            raise NotAllowed(f"we may not {look.verb} {look.resource}{where}")
        answer = self._api.call(ApiCall(right=look))
        return (_read(decoder, answer.body).items or []) if answer.ok else []


def _read(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise Transient(f"the API server's answer makes no sense: {exc}") from exc
