"""Decode what the API server sends into the types of the port. Only the needed fields are decoded. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

import msgspec

from pool.core.errors import Transient
from pool.drivers.kubernetes import wire
from pool.drivers.kubernetes.manifests import CONTAINER
from pool.drivers.kubernetes.nodes import Node, Toleration
from pool.drivers.port import Pod, PodPhase

T = TypeVar("T")

# Normal reasons for a container to be waiting while it starts.
_STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A pod as the API server described it. Its age, and the state of its node, change without an
    event of the pod.
    """

    pod: Pod
    created_s: float
    tolerations: tuple[Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[T]):
    """One page of a list, its version, and the token of the next page."""

    items: list[T]
    version: str
    more: str = ""


_EVENT = msgspec.json.Decoder(wire.WatchEvent)
_STATUS = msgspec.json.Decoder(wire.Status)
_BARE = msgspec.json.Decoder(wire.BareObject)
_ONE_POD = msgspec.json.Decoder(wire.PodObject)
_ONE_NODE = msgspec.json.Decoder(wire.NodeObject)
_PODS = msgspec.json.Decoder(wire.ListOf[wire.PodObject])
_NODES = msgspec.json.Decoder(wire.ListOf[wire.NodeObject])
_BARES = msgspec.json.Decoder(wire.ListOf[wire.BareObject])


def pod(body: bytes | msgspec.Raw) -> Known:
    return _known(_decoded(_ONE_POD, body))


def pods(body: bytes) -> ListPage[Known]:
    page = _decoded(_PODS, body)
    items = [_known(item) for item in page.items or ()]
    return ListPage(items=items, version=page.metadata.resource_version, more=page.metadata.more)


def node(body: bytes | msgspec.Raw) -> Node:
    return _node(_decoded(_ONE_NODE, body))


def nodes(body: bytes) -> ListPage[Node]:
    page = _decoded(_NODES, body)
    items = [_node(item) for item in page.items or ()]
    return ListPage(items=items, version=page.metadata.resource_version, more=page.metadata.more)


def meta(body: bytes | msgspec.Raw) -> wire.Meta:
    """Return the metadata of any object."""
    return _decoded(_BARE, body).metadata


def metas(body: bytes) -> ListPage[wire.Meta]:
    page = _decoded(_BARES, body)
    items = [item.metadata for item in page.items or ()]
    return ListPage(items=items, version=page.metadata.resource_version, more=page.metadata.more)


def event(line: bytes) -> wire.WatchEvent:
    return _decoded(_EVENT, line)


def status(body: bytes | msgspec.Raw) -> wire.Status:
    """Return the explanation of a failure; the text itself if it is not a Status object."""
    try:
        return _STATUS.decode(body)
    except msgspec.DecodeError:
        return wire.Status(message=bytes(body)[:200].decode(errors="replace").strip())


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw) -> T:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as exc:
        raise Transient(f"cannot decode the API server's answer: {exc}") from exc


def _node(item: wire.NodeObject) -> Node:
    return Node(name=item.metadata.name, cordoned=item.spec.unschedulable, taints=item.spec.taints)


def _known(item: wire.PodObject) -> Known:
    meta, spec, status = item.metadata, item.spec, item.status
    conditions = {c.type: c for c in status.conditions}
    phase, why = _life(status)
    unscheduled = conditions.get("PodScheduled", wire.PodCondition())
    unschedulable = unscheduled.status == "False" and unscheduled.reason == "Unschedulable"
    container = _worker(spec.containers or [])
    shown = Pod(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        phase=phase,
        ready=phase is PodPhase.RUNNING and _is_true(conditions, "Ready"),
        terminating=bool(meta.deletion_timestamp),
        endpoint=_endpoint(status.pod_ip, container),
        node=spec.node_name,
        image=container.image,
        labels=meta.labels,
        annotations=meta.annotations,
        trouble=_text(why) or (_text(unscheduled) if unscheduled.status == "False" else ""),
        unschedulable=unschedulable,
        exit_code=why.exit_code if phase is PodPhase.ENDED else None,
        leaving=_disruption(conditions),
    )
    return Known(pod=shown, created_s=_instant(meta.creation_timestamp), tolerations=spec.tolerations)


def _life(status: wire.PodStatus) -> tuple[PodPhase, wire.Why]:
    """Return the phase of the pod's container, and what is wrong with it."""
    state = next((s.state for s in status.container_statuses if s.name == CONTAINER), wire.ContainerState())
    over = status.phase in ("Succeeded", "Failed")
    if state.terminated is not None or over:
        why = state.terminated or wire.Why()
        # If the node ended the pod, the reason is on the pod, not on its container.
        said = (
            why
            if why.reason and not status.reason
            else wire.Why(reason=status.reason, message=status.message)
        )
        return PodPhase.ENDED, wire.Why(said.reason or "ended", said.message, why.exit_code)
    if state.waiting is not None and state.waiting.reason not in _STARTING:
        return PodPhase.PENDING, state.waiting
    return (PodPhase.PENDING if status.phase in ("", "Pending") else PodPhase.RUNNING), wire.Why()


def _worker(containers: list[wire.Container]) -> wire.Container:
    first = containers[0] if containers else wire.Container()
    return next((c for c in containers if c.name == CONTAINER), first)


def _endpoint(ip: str, container: wire.Container) -> str:
    if not ip or not container.ports:
        return ""
    return f"http://{f'[{ip}]' if ':' in ip else ip}:{container.ports[0].container_port}"


def _disruption(conditions: Mapping[str, wire.PodCondition]) -> str:
    if not _is_true(conditions, "DisruptionTarget"):
        return ""
    return f"chosen for disruption: {_text(conditions['DisruptionTarget']) or 'no reason given'}"


def _is_true(conditions: Mapping[str, wire.PodCondition], kind: str) -> bool:
    return kind in conditions and conditions[kind].status == "True"


def _text(why: wire.Why | wire.PodCondition) -> str:
    return ": ".join(filter(None, (why.reason, why.message)))


def _instant(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
