"""Run two verbs concurrently, in every order of their steps. Each runs in its own thread, and
exactly one thread moves at any time: a verb stops before each of its steps until it may continue. A
step that waits for a lock of the other verb is detected and counted.

The orders are enumerated by depth-first search: run with one sequence of choices, then change the
last choice that has an alternative. `preemptions` limits how often a verb is stopped although it
could continue; None is no limit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import event, text

from pool.lifecycle.deps import Deps
from pool.store import Store, Tx, rules

Verb = Callable[[Deps], object]


class Grain(StrEnum):
    """The size of a step."""

    TRANSACTION = "transaction"
    STATEMENT = "statement"


class Actor:
    """One verb in its thread."""

    def __init__(self, verb: Verb, deps: Deps, grain: Grain) -> None:
        store: Any = SteppingStore(deps.store, self, grain)
        self._verb, self._deps = verb, replace(deps, store=store)
        self._deps.__dict__["driver"] = deps.driver
        self._go = threading.Semaphore(0)
        self.stopped = threading.Event()
        self.done = False
        self.backend_pid = 0
        self.result: object = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def go(self) -> None:
        """Run the next step."""
        self.stopped.clear()
        self._go.release()

    def pause(self) -> None:
        """Wait for permission. Called in the actor's own thread before each step."""
        self.stopped.set()
        if not self._go.acquire(timeout=60):
            raise TimeoutError("the verb was never resumed")

    def _run(self) -> None:
        try:
            self.pause()
            self.result = self._verb(self._deps)
        except BaseException as exc:  # noqa: BLE001 - the runner of the actors reads it
            self.error = exc
        self.done = True
        self.stopped.set()


class SteppingStore:
    """A store whose verb stops before each transaction, or before each statement and each commit."""

    def __init__(self, store: Store, actor: Actor, grain: Grain) -> None:
        self._store, self._actor, self._grain = store, actor, grain

    @contextmanager
    def write(self) -> Iterator[Tx]:
        if self._grain is Grain.TRANSACTION:
            self._actor.pause()
            with self._store.write() as tx:
                yield tx
            return
        with self._store.write() as tx, self._stepping(tx):
            yield tx
            self._actor.pause()

    def ask(self, statement: str, argument: str) -> str | None:
        """A rule decides everything in one statement, so other verbs can only run before its
        commit.
        """
        asks = self.read if self._grain is Grain.TRANSACTION else self.write
        with asks() as tx:
            return rules.Within(tx).ask(statement, argument)

    def read(self) -> AbstractContextManager[Tx]:
        return self._reading(self._store.read)

    def snapshot(self) -> AbstractContextManager[Tx]:
        return self._reading(self._store.snapshot)

    @contextmanager
    def _reading(self, begin: Callable[[], AbstractContextManager[Tx]]) -> Iterator[Tx]:
        if self._grain is Grain.TRANSACTION:
            self._actor.pause()
            with begin() as tx:
                yield tx
            return
        with begin() as tx, self._stepping(tx):
            yield tx

    @contextmanager
    def _stepping(self, tx: Tx) -> Iterator[None]:
        self._actor.backend_pid = tx.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]

        def before(*_: object) -> None:
            self._actor.pause()

        event.listen(tx, "before_cursor_execute", before)
        try:
            yield
        finally:
            event.remove(tx, "before_cursor_execute", before)


@dataclass
class Order:
    """One order that was tried: the actor of each step, the alternatives, and the result."""

    steps: list[int] = field(default_factory=list)
    options: list[list[int]] = field(default_factory=list)
    waits: int = 0
    results: tuple[object, ...] = ()
    errors: tuple[BaseException | None, ...] = ()

    def told(self) -> str:
        return "".join("AB"[s] for s in self.steps)


@dataclass(frozen=True)
class Bound:
    """How often a verb is stopped at most, and at which steps."""

    preemptions: int | None
    every: int


def orders(
    verbs: tuple[Verb, Verb],
    begin: Callable[[], Deps],
    *,
    grain: Grain,
    preemptions: int | None = None,
    every: int = 1,
) -> Iterator[Order]:
    """Yield every order within the limits; with `every`, verbs stop only at every n-th step.
    `begin` restores the world before each run.
    """
    prefix: list[int] | None = []
    while prefix is not None:
        order = _run(verbs, begin(), grain, prefix, Bound(preemptions, every))
        prefix = _next(order)
        yield order


def _next(order: Order) -> list[int] | None:
    """Return the choices up to the last that has an alternative, followed by that alternative."""
    for at in reversed(range(len(order.steps))):
        others = order.options[at]
        later = others[others.index(order.steps[at]) + 1 :]
        if later:
            return [*order.steps[:at], later[0]]
    return None


def _run(verbs: tuple[Verb, Verb], deps: Deps, grain: Grain, prefix: list[int], bound: Bound) -> Order:
    order, actors = Order(), []
    for verb in verbs:
        actors.append(Actor(verb, deps, grain))
        actors[-1].stopped.wait(60)
    last, left = -1, bound.preemptions
    waiting: set[int] = set()
    while not all(a.done for a in actors):
        _see_who_goes_on(actors, waiting, deps.store)
        able = [n for n, a in enumerate(actors) if not a.done and n not in waiting]
        if not able:
            continue  # the last one has just stopped waiting, or the database ends a deadlock
        at = len(order.steps)
        options = _allowed(able, last, left if at % bound.every == 0 else 0)
        chosen = prefix[at] if at < len(prefix) else options[0]
        if left is not None and last in able and chosen != last:
            left -= 1
        order.steps.append(chosen)
        order.options.append(options)
        last = chosen
        actors[chosen].go()
        if _waits(actors[chosen], deps.store):
            waiting.add(chosen)
            order.waits += 1
    order.results = tuple(a.result for a in actors)
    order.errors = tuple(a.error for a in actors)
    return order


def _allowed(able: list[int], last: int, left: int | None) -> list[int]:
    """Return which actors may go next: the last one first, and only that one if no preemption is
    left.
    """
    if last not in able:
        return able
    others = [n for n in able if n != last]
    return [last] if left == 0 else [last, *others]


def _waits(actor: Actor, store: Store) -> bool:
    """Return whether the step that was just begun waits for a lock; False once it has completed."""
    while not actor.stopped.wait(0.004):
        if _is_blocked(actor, store):
            return True
    return False


def _see_who_goes_on(actors: list[Actor], waiting: set[int], store: Store) -> None:
    for n in list(waiting):
        if not _waits(actors[n], store):
            waiting.discard(n)


def _is_blocked(actor: Actor, store: Store) -> bool:
    statement = text("SELECT cardinality(pg_blocking_pids(:pid)) > 0")
    with store.read() as tx:
        return bool(tx.execute(statement, {"pid": actor.backend_pid}).scalar_one())
