"""Shares of a full pool: orgs that always have waiters, and what part of the grants each of them gets.

    python -m bench.fairness [--cap 4] [--grants 200] [--profile b=big] a=1 b=2 c=3

Runs the pool's own rules, passes and verbs on a database of its own; pods are rows only. The first org holds the whole
pool when the others begin to wait. Prints each org's weight, its share by weight, its share of the second half of the
grants, and how many grants of others a waiter saw at most before its own.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from pool.core.states import MoveReason
from pool.store import connect, migrations
from tests.support.postgres_server import PostgresServer
from tests.support.steady_load import SteadyLoad
from tests.support.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessRun:
    """What is run: orgs with their weights, profiles of those that want another than `default`."""

    cap: int
    grants: int
    weights: dict[str, float]
    profiles: dict[str, str]


def main(argv: Sequence[str] | None = None) -> int:
    asked = _parsed(argv)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    server = PostgresServer().start()
    try:
        store = connect(server.create_database("fairness"))
        migrations.upgrade(store)
        world = World(store)
        print(_report(asked, _run(asked, world), world))
        store.close()
    finally:
        server.stop()
    return 0


def _parsed(argv: Sequence[str] | None) -> FairnessRun:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("--cap", type=int, default=4, help="the pool's cap (4)")
    parser.add_argument("--grants", type=int, default=200, help="number of grants to make (200)")
    parser.add_argument(
        "--profile", action="append", default=[], help="ORG=PROFILE, for an org that uses another"
    )
    parser.add_argument("orgs", nargs="*", default=["a=1", "b=2", "c=3"], help="ORG=WEIGHT")
    given = parser.parse_args(argv)
    weights = {name: float(weight) for name, weight in (each.split("=") for each in given.orgs)}
    profiles = dict(each.split("=") for each in given.profile)
    return FairnessRun(cap=given.cap, grants=given.grants, weights=weights, profiles=profiles)


def _run(asked: FairnessRun, world: World) -> SteadyLoad:
    world.configure(max_workers=asked.cap)
    for profile in {"default", *asked.profiles.values()}:
        world.profile(profile, warm_target=0)
    for org, weight in asked.weights.items():
        world.org(org, weight=weight)
    world.warm(asked.cap)
    load = SteadyLoad(world=world, orgs=tuple(asked.weights)[:1], profiles=asked.profiles)
    load.top_up()
    load.orgs = tuple(asked.weights)
    load.top_up()
    while len(load.served) < asked.grants:
        load.step()
    return load


def _report(asked: FairnessRun, load: SteadyLoad, world: World) -> str:
    total, shares = sum(asked.weights.values()), load.shares(asked.grants // 2)
    lines = [f"{'ORG':<12}{'WEIGHT':>8}{'BY WEIGHT':>11}{'SHARE':>8}{'PASSED OVER':>13}"]
    for org, weight in asked.weights.items():
        most = max((g.passed_by for g in load.served if g.org == org), default=0)
        lines.append(f"{org:<12}{weight:>8g}{weight / total:>11.1%}{shares[org]:>8.1%}{most:>13}")
    gave_way = sum(1 for e in world.rows("journal") if e.reason == MoveReason.GAVE_WAY)
    lines.append(f"{len(load.served)} grants, cap {asked.cap}, {gave_way} workers retired for another org")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
