"""The fields of the API server's objects that we read. All other fields are skipped while decoding."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from pool.drivers.kubernetes.nodes import Taint, Toleration

T = TypeVar("T")


class Owner(msgspec.Struct, frozen=True):
    uid: str = ""


class Meta(msgspec.Struct, frozen=True, rename="camel"):
    """The metadata of an object."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    # Older servers send null if there is none.
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[Owner] = []


class BareObject(msgspec.Struct, frozen=True):
    """Any object, of which only the metadata is read."""

    metadata: Meta = Meta()


class Status(msgspec.Struct, frozen=True):
    """Why a call failed, as the server reports it."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Port(msgspec.Struct, frozen=True, rename="camel"):
    container_port: int = 0


class Container(msgspec.Struct, frozen=True):
    name: str = ""
    image: str = ""
    ports: list[Port] = []


class WirePodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""
    containers: list[Container] | None = None
    tolerations: tuple[Toleration, ...] = ()


class Why(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    message: str = ""
    exit_code: int | None = None


class ContainerState(msgspec.Struct, frozen=True):
    waiting: Why | None = None
    terminated: Why | None = None


class ContainerStatus(msgspec.Struct, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()


class PodCondition(msgspec.Struct, frozen=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")
    conditions: list[PodCondition] = []
    container_statuses: list[ContainerStatus] = []


class PodObject(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: WirePodSpec = WirePodSpec()
    status: PodStatus = PodStatus()


class NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeObject(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: NodeSpec = NodeSpec()


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    more: str = msgspec.field(name="continue", default="")


class ListOf(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[T] | None = None
