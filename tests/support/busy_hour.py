"""A pool with an hour of history: claims, releases, a lost worker, a failing profile and waiters,
all made by the pool's own code.
"""

from __future__ import annotations

from sqlalchemy import insert, text

from pool.core.ids import ProfileName, WorkerId
from pool.core.settings import Profile
from pool.core.states import MoveReason, State
from pool.ops import operating
from pool.ops.operating import Operator
from pool.store import breakers, schema
from pool.store.engine import Store
from tests.support.world import World

ORGS = {"acme": 12, "bolt": 0, "cedar": 6, "delta": 30, "ember": 0, "flint": 4}
PASSES = (
    "reconcile_warm",
    "reap",
    "guard_disruption",
    "sweep_stuck",
    "sweep_orphans",
    "reconcile_headroom",
    "collect_garbage",
)


def an_hour(world: World, *, minutes: int = 60) -> None:
    """Create demand that rises and falls, up to now."""
    world.profile("default", warm_target=24, cpu_millicores=500, memory_mib=1024)
    world.profile("browser", warm_target=8, cpu_millicores=2000, memory_mib=4096)
    world.profile("gpu", warm_target=2, cpu_millicores=8000, memory_mib=32768)
    for org, cap in ORGS.items():
        world.org(org, cap=cap)
    world.pass_time(-60.0 * minutes)
    world.warm(44)
    world.warm(14, "browser")
    world.warm(2, "gpu")
    held: list[tuple[str, int]] = []
    names = list(ORGS)
    for minute in range(minutes):
        for k in range(1 + (minute * 7) % 4):
            org = names[(minute * 5 + k * 3) % len(names)]
            answer = world.acquire(
                org, profile="browser" if (minute + k) % 4 == 0 else "default", ttl_s=900, lease_s=3600
            )
            if hasattr(answer, "claim_id"):
                held.append((answer.claim_id, minute + 6 + (minute * 3 + k) % 22))
        for claim_id, until in [h for h in held if h[1] <= minute]:
            world.release(claim_id, "tainted" if minute % 17 == 0 else "clean")
            held.remove((claim_id, until))
        if minute % 4 == 0:
            world.warm(3)
        world.settle()
        world.pass_time(60)


def now_with_trouble(world: World) -> None:
    """Create what an operator must notice: waiters, a leaving worker, a profile that cannot start
    and a lost pod.
    """
    hot = world.workers(State.HOT)
    world.driver.change(hot[0].id, terminating=True)
    world.driver.take_away(hot[1].id)
    world.observe()
    alice = Operator(name="alice", way="cli", why="kernel upgrade")
    operating.drain(world.deps, [WorkerId(hot[2].id)], alice)
    while hasattr(world.acquire("flint", lease_s=3600), "claim_id"):
        pass
    world.waits("flint", wait_s=600)
    world.waits("ember", profile="gpu", wait_s=600) if not world.workers(State.IDLE) else None
    with world.store.write() as tx:
        for _ in range(4):
            breakers.failed(tx, ProfileName("gpu"), "ImagePullBackOff: registry.test/gpu:9 not found")
    operating.set_warm(world.store, ProfileName("browser"), 8, alice)
    shape = world.deps.settings.profiles["default"]
    from pool.store import orgs, workers

    with world.store.write() as tx:
        orgs.reserve_slots(tx, 5, 0)
        workers.insert_slots(
            tx,
            shape,
            "rev",
            [world.deps.ids.worker() for _ in range(5)],
            world.deps.by(MoveReason.DEMAND, "target 24, 1 waiting"),
        )
    passes_are_well(world)


def passes_are_well(world: World) -> None:
    """Record a tick of every pass, as if beat had just sent them."""
    from pool.store import passes

    for name in PASSES:
        with world.store.write() as tx:
            passes.attempt(tx, name, "passes@node-1:4711", not_within_s=0)
            passes.succeeded(
                tx,
                name,
                detail="slots_made 5" if name == "reconcile_warm" else "",
                actions=0,
                duration_s=0.02,
            )
    world.canary()


def many(store: Store, count: int, *, first: int = 0) -> None:
    """Add `count` live workers with SQL alone: a third in use, the rest idle. `first` is the number of
    the first one.
    """
    shape = Profile()
    row = {
        "profile": shape.name, "image": shape.image, "revision": "rev", "cpu_millicores": 500,
        "memory_mib": 512, "grace_s": 1,
        "state": "spawning", "moved_by": "test", "moved_reason": "demand", "pod_uid": "u",
        "endpoint": "http://e",
        "created_at": schema_now(), "state_since": schema_now(), "ready_at": schema_now(),
    }  # fmt: skip
    with store.write() as tx:
        tx.execute(
            insert(schema.workers),
            [
                row | {"id": f"w-{i:020d}", "profile": ("default", "browser")[i % 5 == 0]}
                for i in range(first, first + count)
            ],
        )
        tx.execute(text("UPDATE pool SET live = live + :n"), {"n": count})
        tx.execute(
            text(
                "UPDATE workers SET state = 'hot', epoch = 1, org = 'org-' || (CAST(substr(id, 3) AS INTEGER) % 200), claim_id = 'c' || id"
                " WHERE state = 'spawning' AND CAST(substr(id, 3) AS INTEGER) % 3 = 0"
            )
        )
        tx.execute(text("UPDATE workers SET state = 'idle' WHERE state = 'spawning'"))


def schema_now() -> object:
    import datetime as dt

    return dt.datetime.now(dt.UTC)
