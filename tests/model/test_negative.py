"""Each fence is taken away, and something in the suite has to miss it: a pair of verbs that meets (`tests/support/meeting.py`), a story told to
the model's oracle, or a test of the suite by name. A fence that nobody missed would be one that nobody needs, or that nobody tests. The
advisory locks of Postgres are taken away in `tests/integration/test_interleavings.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import bindparam, select, update

from pool import activating, claiming, locks, matching, retiring
from pool.after import After
from pool.errors import PoolError
from pool.ids import OrgId, RandomIds, WorkerId
from pool.locks import RedisLocks
from pool.passes import reap, sweep_orphans
from pool.passes.running import Run
from pool.records import By, Seen
from pool.states import ClaimEnd, Condition, Outcome, State
from pool.store import Store, Tx, claims, orgs, requests, schema, suspects, workers
from tests.integration import test_claiming as claiming_tests
from tests.integration import test_locks as locks_tests
from tests.integration import test_passes as passes_tests
from tests.integration import test_waiting as waiting_tests
from tests.model.machine import PoolMachine
from tests.support.interleaving import Grain
from tests.support.meeting import let_meet
from tests.support.pairs import PAIRS
from tests.support.redis_server import RedisServer
from tests.support.snapshots import keep, memory_store
from tests.support.world import World

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(900)]

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture
def memory() -> Iterator[Store]:
    store = memory_store()
    yield store
    store.close()


@contextmanager
def taken_away(fence: Break) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        fence(patch)
        yield


# Missed when two verbs meet.


def from_state(patch: pytest.MonkeyPatch) -> None:
    """A drain takes the worker whatever it has become since it was seen."""

    def drain(tx: Tx, after: After, worker: Seen, by: By, *, above_floor: bool = False) -> Outcome:
        now_seen = workers.get_for_update(tx, worker.id)
        assert now_seen is not None
        return workers.leave(tx, now_seen, State.DRAINING, by)

    patch.setattr(retiring, "drain", drain)


def epoch(patch: pytest.MonkeyPatch) -> None:
    """A drain asks for the state alone, not whether it is still the same stay in it."""
    real = retiring.drain

    def drain(tx: Tx, after: After, worker: Seen, by: By, *, above_floor: bool = False) -> Outcome:
        now_seen = workers.get_for_update(tx, worker.id)
        assert now_seen is not None
        same = now_seen if now_seen.state is worker.state else worker
        return real(tx, after, same, by, above_floor=above_floor)

    patch.setattr(retiring, "drain", drain)


def expiry_in_the_update(patch: pytest.MonkeyPatch) -> None:
    """A claim that was found expired is ended, renewed meanwhile or not."""
    C = claims.C

    def end(tx: Tx, claim_id: str, why: ClaimEnd) -> Any:
        statement = update(C).where(C.c.id == claim_id, C.c.ended_at.is_(None))
        statement = statement.values(ended_at=claims.now(), ended_why=why)
        return claims._one(tx.execute(statement.returning(C)).one_or_none())

    patch.setattr(claims, "end", end)


def silence_in_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Who was found silent is given up, whatever he has done meanwhile."""
    patch.setattr(activating, "give_up", lambda deps, held, **_k: activating.fail(deps, held, "silent"))


def floor_in_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The UPDATE that takes one from the parked does not ask for the floor; nothing else does."""

    def give(tx: Tx, org: OrgId) -> bool:
        orgs.give_park(tx, org)
        return True

    patch.setattr(orgs, "give_park_above_floor", give)


MEETINGS: dict[str, tuple[Break, str]] = {
    "from-state check": (from_state, "claim / retire"),
    "epoch check": (epoch, "claim and release of a parked one / reap"),
    "expiry in the UPDATE": (expiry_in_the_update, "renew / expiry"),
    "silence in the transaction": (silence_in_the_transaction, "activate / sweep of the silent"),
    "floor in the transaction": (floor_in_the_transaction, "reap / a waiter needs room at a floor of one"),
}


@pytest.mark.parametrize("fence", MEETINGS)
def test_a_fence_is_missed_when_verbs_meet(fence: str, memory: Store) -> None:
    take_away, pair = MEETINGS[fence]
    with pytest.raises(AssertionError):
        let_meet(PAIRS[pair], memory, Grain.TRANSACTION, preemptions=None, broken=taken_away(take_away))


def rows_first(run: Run) -> None:
    """A sweep that reads the rows, and then lists pods that were made meanwhile."""
    with run.deps.store.read() as tx:
        early = {w.id: w for w in workers.live(tx, states=frozenset(State))}
    with run.deps.store.read():
        """Here the other verb goes on."""
    unowned = [p for p in run.cluster().pods if sweep_orphans._is_unowned(p, early.get(WorkerId(p.name)))]
    sweep_orphans._never_stamped(run, unowned)


def test_pods_before_rows_is_missed(memory: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young pod is left alone anyhow; where none is young it is this order alone that protects a new one."""
    monkeypatch.setattr(sweep_orphans, "YOUNG_S", 0.0)
    pair = PAIRS["spawn / sweep of orphans"]
    let_meet(pair, memory, Grain.TRANSACTION, preemptions=2)
    other = memory_store()
    swapped = taken_away(lambda patch: patch.setattr(sweep_orphans, "run", rows_first))
    with pytest.raises(AssertionError):
        let_meet(pair, other, Grain.TRANSACTION, preemptions=2, broken=swapped)
    other.close()


# Missed by the oracle of the model: short stories, told with its rules.


class Story:
    """The rules of the model one after the other, the promises looked at after each."""

    def __init__(self, store: Store) -> None:
        world = World(store)
        machine: type[PoolMachine] = type("Machine", (PoolMachine,), {"world": world, "empty": keep(world)})
        self.machine = machine()
        self.then("begin")

    def then(self, rule: str, *given: Any) -> Story:
        getattr(self.machine, rule)(*given)
        self.machine.promises_are_kept()
        return self


def an_outage(story: Story) -> None:
    story.then("acquire", "acme", "default", 0).then("time_passes", 70).then("tick", "reap")


def somebody_waits_at_his_cap(story: Story) -> None:
    """He waits at his org's cap while workers are idle; the cap goes, and another org comes."""
    story.then("a_cap_changes", "acme", 1).then("acquire", "acme", "default", 0)
    story.then("everything_is_carried_out").then("acquire", "acme", "default", 20)
    story.then("a_cap_changes", "acme", 0).then("acquire", "bolt", "default", 0)


def asked_twice(story: Story) -> None:
    story.then("a_target_changes", "default", 2).then("tick", "reconcile_warm").then(
        "everything_is_carried_out"
    )
    story.then("acquire", "acme", "default", 0).then("acquire_again", 0)


def parked_for_another(story: Story) -> None:
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean").then(
        "acquire", "bolt", "default", 0
    )


def three_at_a_cap_of_one(story: Story) -> None:
    story.then("a_cap_changes", "acme", 1).then("acquire", "acme", "default", 0)
    story.then("everything_is_carried_out").then("acquire", "acme", "default", 0)


def a_stale_holder(story: Story) -> None:
    """He gave it back, the org's next has it, and he gives it back once more."""
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean")
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean")


def outage_rule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reap, "lane_is_open", lambda *_a, **_k: True)
    patch.setattr(claims, "_expired", lambda: (claims.C.c.lease_expires_at < claims.now(),))


def waiters_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(matching, "match", lambda *_a: 0)
    patch.setattr(claiming, "_overtakes", lambda *_a: False)


def idempotence(patch: pytest.MonkeyPatch) -> None:
    """Every delivery is a request of its own."""
    real = requests.insert
    patch.setattr(
        requests, "insert", lambda tx, pk, asked, reply: real(tx, pk, replace(asked, request_id=pk), reply)
    )


def own_org_only(patch: pytest.MonkeyPatch) -> None:
    def pick(tx: Tx, _org: str, profile: str) -> Seen | None:
        parked = workers.live(tx, states=frozenset({State.HOT_IDLE}))
        return parked[0] if parked else None

    patch.setattr(workers, "pick_parked", pick)


def guarded_counter(patch: pytest.MonkeyPatch) -> None:
    """The cap is not looked at when it is counted, nor before."""
    patch.setattr(matching.orgs, "get", _uncapped(orgs.get))

    def take(tx: Tx, org: Any) -> bool:
        tx.execute(
            update(schema.orgs).where(schema.orgs.c.id == org.id).values(in_use=schema.orgs.c.in_use + 1)
        )
        return True

    patch.setattr(orgs, "take_claim", take)


def _uncapped(real: Callable[..., Any]) -> Callable[..., Any]:
    def get(tx: Tx, org: Any) -> Any:
        found = real(tx, org)
        return None if found is None else replace(found, cap=0)

    return get


def ended_once(patch: pytest.MonkeyPatch) -> None:
    """The end of a claim does not ask whether it was over; it goes for the worker that it had."""

    def finish(deps: Any, claim_id: Any, _condition: Any, _org: Any) -> str:
        with deps.store.write() as tx:
            claim = claims.get(tx, claim_id)
            assert claim is not None
            worker = workers.get_for_update(tx, claim.worker_id)
            assert worker is not None
            workers.leave(tx, worker, State.DRAINING, deps.by("test"))
            claims.end(tx, worker.claim_id or claim_id, ClaimEnd.RELEASED)
        return "released"

    patch.setattr(claiming, "finish_release", finish)


STORIES: dict[str, tuple[Break, Callable[[Story], None]]] = {
    "outage rule for leases": (outage_rule, an_outage),
    "waiters before newcomers": (waiters_first, somebody_waits_at_his_cap),
    "one claim a request": (idempotence, asked_twice),
    "one org for life": (own_org_only, parked_for_another),
    "cap in the transaction": (guarded_counter, three_at_a_cap_of_one),
    "an ended claim moves nothing": (ended_once, a_stale_holder),
}


@pytest.mark.parametrize("fence", STORIES)
def test_the_stories_end_well_with_all_fences(fence: str, memory: Store) -> None:
    STORIES[fence][1](Story(memory))


@pytest.mark.parametrize("fence", STORIES)
def test_a_fence_is_missed_by_the_oracle(fence: str, memory: Store) -> None:
    take_away, story = STORIES[fence]
    begun = Story(memory)
    with taken_away(take_away), pytest.raises((AssertionError, PoolError)):
        story(begun)


# Missed by tests of the suite.


def test_the_second_look_is_missed(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-proof rule, the table's half: seen once counts as seen often."""
    real = suspects.see

    def see(*given: Any) -> suspects.Suspicion:
        return suspects.Suspicion(runs=9, age_s=real(*given).age_s)

    monkeypatch.setattr(suspects, "see", see)
    _fails(passes_tests.test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own, sqlite_store)


def test_the_pods_own_word_is_missed(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-proof rule, the pod's half: nobody asks it."""
    world = World(sqlite_store)
    monkeypatch.setattr(world.driver, "word", lambda _pod: sweep_orphans.Word.UNUSED)
    with pytest.raises(AssertionError):
        passes_tests.test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own(
            world, sweep_orphans.Word.BUSY, deleted=False
        )


def test_the_deadline_in_the_update_is_missed(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    R = requests.R

    def eligible(statement: Any) -> Any:
        return statement.where(R.c.profile == bindparam("profile"), R.c.state == "waiting")

    monkeypatch.setattr(requests, "_eligible", eligible)
    # What was built with the fence is built again without it.
    monkeypatch.setattr(requests, "_ANYONE", eligible(select(R.c.pk)).limit(1))
    monkeypatch.setattr(requests, "_QUEUE", requests._in_order(requests._waiting_orgs()))
    monkeypatch.setattr(requests, "_NEXT", eligible(select(R)).where(R.c.org == bindparam("org")).limit(1))
    monkeypatch.setattr(requests, "_in_time", lambda: R.c.pk.is_not(None))
    with pytest.raises(AssertionError):
        waiting_tests.test_a_waiter_past_its_deadline_is_not_served(World(sqlite_store))


def test_the_locks_token_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that deletes whatever is there frees the successor's lock."""
    monkeypatch.setattr(locks, "_RELEASE", "return redis.call('del', KEYS[1])")
    with RedisServer() as server, locks_tests.client_of(server) as client:
        held = RedisLocks(client, clock=locks_tests.HandClock(), ids=RandomIds(), who="host-1")
        with pytest.raises(AssertionError):
            locks_tests.test_a_run_that_lost_its_lock_does_not_release_its_successors(held, client)


def test_the_org_of_a_renewal_is_missed(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows a claim's id renews it."""
    monkeypatch.setattr(claims, "_of", lambda _org: ())
    with pytest.raises(AssertionError):
        claiming_tests.test_who_is_known_renews_his_own_claims_only(World(sqlite_store), claiming.renew)


def test_the_org_of_a_release_is_missed(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows a claim's id ends it."""
    real = claiming.finish_release
    monkeypatch.setattr(
        claiming, "finish_release", lambda deps, claim_id, how, _org: real(deps, claim_id, how)
    )
    with pytest.raises(AssertionError):
        claiming_tests.test_who_is_known_releases_his_own_claims_only(
            World(sqlite_store), claiming.release, Condition.CLEAN
        )


def _fails(test: Callable[..., None], store: Store) -> None:
    with pytest.raises(AssertionError):
        test(World(store), sweep_orphans.Word.UNUSED, deleted=True)
