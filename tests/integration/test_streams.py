"""Read many rows, each exactly once whatever moves meanwhile, in pages."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from pool.core.ids import ProfileName, WorkerId
from pool.core.profiles import revision
from pool.core.records import By
from pool.core.settings import Profile
from pool.core.states import CLAIMABLE, MoveReason, State
from pool.passes import collect_garbage
from pool.store import Store, builds, row_scans, schema, workers
from pool.store.sql import now as now_sql
from tests.support.world import World

BY = By(who="tester", reason=MoveReason.DEMAND)
DEFAULT, BIG = ProfileName("default"), ProfileName("big")


def slots(store: Store, *names: str, profile: Profile | None = None, build: str = "rev-1") -> list[WorkerId]:
    ids = [WorkerId(n) for n in names]
    with store.write() as tx:
        workers.insert_slots(tx, profile or Profile(), build, ids, BY)
    return ids


def ready(store: Store, *ids: WorkerId) -> None:
    with store.write() as tx:
        for worker in workers.get_many(tx, ids).values():
            facts = {"ready_at": now_sql(), "pod_uid": f"uid-{worker.id}", "endpoint": "http://x"}
            workers.move(tx, workers.Fence.on(worker), State.IDLE, BY, **facts)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_scans, "_AT_A_TIME", 2)


def test_every_live_row_is_read_once_over_many_pages(store: Store) -> None:
    made = {
        *slots(store, "w-1", "w-2", "w-3"),
        *slots(store, "w-4", "w-5", build="rev-0"),
        *slots(store, "w-6", "w-7", profile=Profile(name="big")),
    }
    with store.write() as tx:
        for worker in workers.get_many(tx, [WorkerId("w-2"), WorkerId("w-6")]).values():
            workers.leave(tx, worker, State.LOST, BY)
    with store.read() as tx:
        found = [g.id for g in row_scans.live(tx)]
        assert sorted(found) == sorted(made - {"w-2", "w-6"})
        assert list(row_scans.live(tx, states=CLAIMABLE)) == []


def test_a_row_that_moves_during_the_read_is_read_exactly_once(store: Store) -> None:
    """A move changes the order by state, but not the order of this read."""
    made = slots(store, *(f"w-{n}" for n in range(7)))
    with store.read() as tx:
        walk = row_scans.live(tx)
        met = [next(walk).id, next(walk).id]
        ready(store, *made)
        met += [g.id for g in walk]
    assert met == made


def test_a_glimpse_has_the_columns_of_its_row(store: Store) -> None:
    (worker,) = slots(store, "w-1")
    ready(store, worker)
    with store.read() as tx:
        (seen,) = row_scans.live(tx)
    assert seen == ("w-1", "idle", 0, None, None, "uid-w-1")


def test_live_rows_are_found_among_many_names(store: Store) -> None:
    slots(store, *(f"w-{n}" for n in range(5)))
    with store.write() as tx:
        (gone,) = workers.get_many(tx, [WorkerId("w-3")]).values()
        workers.leave(tx, gone, State.LOST, BY)
    with store.read() as tx:
        asked = [f"w-{n}" for n in range(9)]
        assert row_scans.live_among(tx, asked) == {"w-0", "w-1", "w-2", "w-4"}
        assert row_scans.live_among(tx, []) == set()


def test_profiles_with_live_rows_are_found(store: Store) -> None:
    slots(store, "w-1", "w-2")
    slots(store, "w-3", profile=Profile(name="big"))
    slots(store, "w-4", profile=Profile(name="ended"))
    with store.write() as tx:
        (gone,) = workers.get_many(tx, [WorkerId("w-4")]).values()
        workers.leave(tx, gone, State.LOST, BY)
    with store.read() as tx:
        assert workers.profiles(tx) == [BIG, DEFAULT]


@pytest.mark.parametrize("other", ["rev-0", "rev-2"])
def test_another_build_is_found_before_and_after_the_wanted_one(store: Store, other: str) -> None:
    slots(store, "w-1", build="rev-1")
    slots(store, "w-2", profile=Profile(name="big"), build=other)
    with store.read() as tx:
        assert not builds.others_live(tx, DEFAULT, "rev-1")
        assert not builds.others_live(tx, ProfileName("none"), "rev-1")
    slots(store, "w-3", build=other)
    with store.read() as tx:
        assert builds.others_live(tx, DEFAULT, "rev-1")
        assert [(o.id, o.state, o.has_pod) for o in builds.others_unclaimed(tx, DEFAULT, "rev-1")] == [
            ("w-3", State.SPAWNING, False)
        ]


def test_idle_workers_are_counted_by_how_long_they_wait(store: Store) -> None:
    ready(store, *slots(store, "w-1", "w-2"))
    with store.write() as tx:
        tx.execute(update(schema.clock).values(shift_s=100.0))
    ready(store, *slots(store, "w-3"))
    with store.read() as tx:
        assert workers.count_idle_since(tx, DEFAULT, older_than_s=50) == 2
        assert workers.count_idle_since(tx, DEFAULT, older_than_s=0) == 3
        assert workers.count_idle_since(tx, BIG, older_than_s=0) == 0


def test_garbage_is_deleted_in_several_batches_of_one_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is bounded by time: as many rows are deleted as are added, also in a busy pool."""
    world = World(store)
    world.configure(pass_limit=2)
    shape = Profile()
    slots(store, *(f"w-{n}" for n in range(50)), profile=shape, build=revision(shape))
    with store.write() as tx:
        for worker in workers.live(tx):
            workers.leave(tx, worker, State.LOST, BY)
    world.pass_time(30 * 86_400)
    monkeypatch.setattr(collect_garbage, "SECONDS_PER_RUN", 0.0)
    assert "workers_dropped" not in world.run_pass("collect_garbage")["actions"]
    monkeypatch.setattr(collect_garbage, "SECONDS_PER_RUN", 60.0)
    assert world.run_pass("collect_garbage")["actions"]["workers_dropped"] == 50
    assert world.rows("workers") == []
