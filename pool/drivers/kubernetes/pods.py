"""The pod cache: what the watches of pods and nodes have told, and who wants to hear of it. Safe to use from many threads.

A pod's age, and whether its node is being taken away, change without a word about the pod. The age is worked out when a pod is looked at, its
node's fate when either of them changes: what is kept is what most readers want, and reading all of it costs a copy of a dict.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pool.drivers.kubernetes.decoding import Known
from pool.drivers.kubernetes.nodes import Node
from pool.drivers.port import Gone, ObservedEvent, Pod


class News:
    """What one listener has not heard yet: the newest of each pod, so that a slow one falls behind by no more than all pods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._untold: dict[str, Pod | Gone] = {}

    def add(self, events: Iterable[Pod | Gone]) -> None:
        """All at once: who waits is woken once."""
        with self._changed:
            self._untold.update((event.uid, event) for event in events)
            self._changed.notify_all()

    def take(self, within_s: float) -> list[Pod | Gone]:
        """All that is new; nothing if nothing was within that time."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._untold), within_s)
            taken, self._untold = self._untold, {}
            return list(taken.values())


class PodCache:
    """All pods of this pool as last told. A `Sink` for pods; `on_nodes` is one for nodes."""

    def __init__(self, age_s: Callable[[float], float]) -> None:
        self._age_s = age_s
        self._lock = threading.Lock()
        self._known: dict[str, Known] = {}
        # The same pods with their nodes' fate, as they are shown but for their age.
        self._told: dict[str, Pod] = {}
        self._nodes: dict[str, Node] = {}
        self._listeners: set[News] = set()
        self.on_nodes = NodeSink(self._nodes_replaced, self._node_changed)

    def pods(self) -> ObservedEvent:
        with self._lock:
            known = self._known.copy()
            return ObservedEvent(
                self._told.copy(), lambda pod: replace(pod, age_s=self._age_s(known[pod.name].created_s))
            )

    def shown(self, known: Known) -> Pod:
        """A pod that was read otherwise, with what is known of its node."""
        with self._lock:
            return self._shown(known)

    @contextmanager
    def listening(self) -> Iterator[News]:
        """While inside, everything is told; it begins with each pod that is known."""
        news = News()
        with self._lock:
            news.add(map(self._shown, self._known.values()))
            self._listeners.add(news)
        try:
            yield news
        finally:
            with self._lock:
                self._listeners.discard(news)

    def replace(self, items: list[Known]) -> None:
        """All pods, from a list: what is missing in it is gone."""
        fresh = {item.pod.name: item for item in items}
        with self._lock:
            news: list[Pod | Gone] = []
            for known in tuple(self._known.values()):
                now = fresh.get(known.pod.name)
                if now is None or now.pod.uid != known.pod.uid:
                    news += self._forget(known)
            for item in items:
                news += self._learn(item)
            self._tell(news)

    def put(self, item: Known) -> None:
        with self._lock:
            before = self._known.get(item.pod.name)
            replaced = before is not None and before.pod.uid != item.pod.uid
            gone = self._forget(before) if replaced and before is not None else ()
            self._tell([*gone, *self._learn(item)])

    def drop(self, item: Known) -> None:
        with self._lock:
            self._tell(self._forget(item))

    def _learn(self, item: Known) -> Sequence[Pod | Gone]:
        """What is to be told of it."""
        before = self._known.get(item.pod.name)
        self._known[item.pod.name] = item
        self._told[item.pod.name] = self._placed(item)
        changed = before is None or before.pod.version != item.pod.version
        return (self._shown(item),) if changed and self._listeners else ()

    def _forget(self, item: Known) -> Sequence[Pod | Gone]:
        before = self._known.get(item.pod.name)
        if before is not None and before.pod.uid == item.pod.uid:
            del self._known[item.pod.name]
            del self._told[item.pod.name]
        return (Gone(name=item.pod.name, uid=item.pod.uid),)

    def _nodes_replaced(self, nodes: Iterable[Node]) -> None:
        with self._lock:
            before, self._nodes = self._nodes, {n.name: n for n in nodes if not n.is_quiet}
            self._tell_moved(before.keys() | self._nodes.keys(), before)

    def _node_changed(self, node: Node) -> None:
        with self._lock:
            before = dict(self._nodes)
            self._nodes.pop(node.name, None)
            if not node.is_quiet:
                self._nodes[node.name] = node
            if before.get(node.name) != self._nodes.get(node.name):
                self._tell_moved({node.name}, before)

    def _tell_moved(self, names: set[str], before: dict[str, Node]) -> None:
        """Tell of each pod whose node's fate is another one now."""
        moved = [
            known
            for known in self._known.values()
            if known.pod.node in names and self._leaving(known, before) != self._leaving(known, self._nodes)
        ]
        for known in moved:
            self._told[known.pod.name] = self._placed(known)
        self._tell(list(map(self._shown, moved)))

    def _tell(self, events: Sequence[Pod | Gone]) -> None:
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
    """Takes what is told of nodes. One that is gone says nothing of its pods: they tell that themselves."""

    def __init__(self, replaced: Callable[[Iterable[Node]], None], changed: Callable[[Node], None]) -> None:
        self.replace = replaced
        self.put = changed

    def drop(self, item: Node) -> None:
        self.put(Node(name=item.name))
