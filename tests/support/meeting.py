"""Run a pair of verbs concurrently in every order of their steps, and compare the results with
those of serial runs.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pool.lifecycle.deps import Deps
from pool.store import Store
from tests.support.crash_points import a_life
from tests.support.interleaving import Grain, Order, orders
from tests.support.pairs import MISSED, Pair, ended, without_the_first
from tests.support.snapshots import keep, restore

TRIED: Counter[str] = Counter()


def let_meet(
    pair: Pair,
    store: Store,
    grain: Grain,
    *,
    preemptions: int | None,
    every: int = 1,
    broken: AbstractContextManager[object] | None = None,
) -> None:
    """Try all orders within the limits. `broken` removes a fence after the expected results are
    recorded.
    """
    life = a_life(store)
    pair.prepare(life)
    kept, verbs = keep(life.world), pair.verbs(life)

    def begin() -> Deps:
        restore(life.world, kept)
        return life.world.deps

    def one_after_the_other(*who: int) -> tuple[Any, ...]:
        deps, results = begin(), [None, None]
        for n in who:
            results[n] = verbs[n](deps)  # type: ignore[call-overload]
        return ended(life, tuple(results))

    serial = [one_after_the_other(0, 1), one_after_the_other(1, 0)]
    alone = without_the_first(one_after_the_other(1))
    with broken or nullcontext():
        for order in orders(verbs, begin, grain=grain, preemptions=preemptions, every=every):
            _count(order, grain)
            assert order.errors == (None, None), f"{order.told()}: {order.errors}"
            if pair.mended is not None:
                pair.mended(life.world.deps)
            life.world.check()
            outcome = ended(life, order.results)
            missed = pair.may_miss and outcome[0][0] == MISSED and without_the_first(outcome) == alone
            assert missed or outcome in serial, f"{order.told()} ended as neither does:\n{outcome}\n{serial}"


def _count(order: Order, grain: Grain) -> None:
    TRIED[f"orders by {grain}"] += 1
    TRIED[f"steps by {grain}"] += len(order.steps)
    TRIED["waits"] += order.waits
