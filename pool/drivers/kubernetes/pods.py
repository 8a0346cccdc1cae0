"""The pod cache: the results of the watches of pods and nodes, and their listeners. Thread-safe.

The age of a pod, and whether its node is being removed, change without an event of the pod. The age
is computed when a pod is read. The state of its node is applied when the pod or the node changes,
so that reading all pods costs one copy of a dict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pool.drivers.kubernetes.decoding import Known
from pool.drivers.kubernetes.nodes import Node
from pool.drivers.port import Gone, ObservedPods, Pod


class EventBuffer:
    """Events that one listener has not read yet: only the newest of each pod, so that a slow
    listener has a bounded backlog.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._unread: dict[str, Pod | Gone] = {}

    def add(self, events: Iterable[Pod | Gone]) -> None:
        """Add events and wake the listener once."""
        with self._changed:
            self._unread.update((event.uid, event) for event in events)
            self._changed.notify_all()

    def take(self, within_s: float) -> list[Pod | Gone]:
        """Return all new events; an empty list if none arrived within that time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._unread), within_s)
            taken, self._unread = self._unread, {}
            return list(taken.values())


class PodCache:
    """All pods of this pool as last observed. A `Sink` for pods; `on_nodes` is the one for nodes."""

    def __init__(self, age_s: Callable[[float], float]) -> None:
        self._age_s = age_s
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        # The same pods with the state of their nodes, but without a current age.
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._listeners: set[EventBuffer] = set()
        self.on_nodes = NodeSink(self._nodes_replaced, self._node_changed)

    def pods(self) -> ObservedPods:
        with self._lock:
            known = self._known.copy()
            return ObservedPods(
                self._pods.copy(), lambda pod: replace(pod, age_s=self._age_s(known[pod.name].created_s))
            )

    def get(self, name: str) -> Pod | None:
        with self._lock:
            known = self._known.get(name)
            return None if known is None else self._shown(known)

    def shown(self, known: Known) -> Pod:
        """Return a pod that was read otherwise, with the state of its node applied."""
        with self._lock:
            return self._shown(known)

    @contextmanager
    def listening(self) -> Iterator[EventBuffer]:
        """Register a listener while inside. Its first events are all known pods."""
        news = EventBuffer()
        with self._lock:
            news.add(map(self._shown, self._known.values()))
            self._listeners.add(news)
        try:
            yield news
        finally:
            with self._lock:
                self._listeners.discard(news)

    def replace(self, items: list[Known]) -> None:
        """Replace all pods after a list. Pods that are not in the list are gone."""
        fresh = {item.pod.name: item for item in items}
        with self._lock:
            news: list[Pod | Gone] = []
            for known in tuple(self._known.values()):
                now = fresh.get(known.pod.name)
                if now is None or now.pod.uid != known.pod.uid:
                    news += self._forget(known)
            for item in items:
                news += self._learn(item)
            self._publish(news)

    def put(self, item: Known) -> None:
        with self._lock:
            before = self._known.get(item.pod.name)
            replaced = before is not None and before.pod.uid != item.pod.uid
            gone = self._forget(before) if replaced and before is not None else ()
            self._publish([*gone, *self._learn(item)])

    def drop(self, item: Known) -> None:
        with self._lock:
            self._publish(self._forget(item))

    def _learn(self, item: Known) -> Sequence[Pod | Gone]:
        """Store a pod and return its event, if it has changed."""
        before = self._known.get(item.pod.name)
        self._known[item.pod.name] = item
        self._pods[item.pod.name] = self._placed(item)
        changed = before is None or before.pod.version != item.pod.version
        return (self._shown(item),) if changed and self._listeners else ()

    def _forget(self, item: Known) -> Sequence[Pod | Gone]:
        before = self._known.get(item.pod.name)
        if before is not None and before.pod.uid == item.pod.uid:
            del self._known[item.pod.name]
            del self._pods[item.pod.name]
        return (Gone(name=item.pod.name, uid=item.pod.uid),)

    def _nodes_replaced(self, nodes: Iterable[Node]) -> None:
        with self._lock:
            before, self._nodes = self._nodes, {n.name: n for n in nodes if not n.is_quiet}
            self._publish_moved(before.keys() | self._nodes.keys(), before)

    def _node_changed(self, node: Node) -> None:
        with self._lock:
            before = dict(self._nodes)
            self._nodes.pop(node.name, None)
            if not node.is_quiet:
                self._nodes[node.name] = node
            if before.get(node.name) != self._nodes.get(node.name):
                self._publish_moved({node.name}, before)

    def _publish_moved(self, names: set[str], before: dict[str, Node]) -> None:
        """Send an event for each pod for which its node's state now means something else."""
        moved = [
            known
            for known in self._known.values()
            if known.pod.node in names and self._leaving(known, before) != self._leaving(known, self._nodes)
        ]
        for known in moved:
            self._pods[known.pod.name] = self._placed(known)
        self._publish(list(map(self._shown, moved)))

    def _publish(self, events: Sequence[Pod | Gone]) -> None:
        for listener in self._listeners if events else ():
            listener.add(events)

    def _shown(self, known: Known) -> Pod:
        leaving = self._leaving(known, self._nodes)
        return replace(known.pod, age_s=self._age_s(known.created_s), leaving=leaving)

    def _placed(self, known: Known) -> Pod:
        leaving = self._leaving(known, self._nodes)
        return known.pod if leaving == known.pod.leaving else replace(known.pod, leaving=leaving)

    def _leaving(self, known: Known, nodes: dict[str, Node]) -> str:
        node = nodes.get(known.pod.node)
        return known.pod.leaving or (node.leaving(known.tolerations) if node else "")


class NodeSink:
    """A `Sink` for nodes. A deleted node is no event for its pods: they have their own events."""

    def __init__(self, replaced: Callable[[Iterable[Node]], None], changed: Callable[[Node], None]) -> None:
        self.replace = replaced
        self.put = changed

    def drop(self, item: Node) -> None:
        self.put(Node(name=item.name))
