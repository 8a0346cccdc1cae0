"""Each fence is removed, and something in the suite must fail: a pair of concurrent verbs
(`tests/support/meeting.py`), a story for the model's oracle, or a named test of the suite. A fence
whose removal fails nothing is either unnecessary or untested. The advisory locks of Postgres are
removed in `tests/integration/test_interleavings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from pool.broker import locks
from pool.broker.locks import RedisLocks
from pool.core.errors import PoolError
from pool.core.ids import OrgId, RandomIds, WorkerId
from pool.core.records import By, SeenWorker
from pool.core.states import Condition, Outcome, State
from pool.drivers.port import Word
from pool.lifecycle import claiming, retiring
from pool.lifecycle.effects import Effects
from pool.passes import reap, sweep_orphans
from pool.passes.running import Run
from pool.store import Store, Tx, claims, orgs, schema, sql, suspects, workers
from tests.integration import test_claiming as claiming_tests
from tests.integration import test_locks as locks_tests
from tests.integration import test_passes as passes_tests
from tests.integration import test_waiting as waiting_tests
from tests.model.machine import PoolMachine
from tests.support.altered_rules import altered
from tests.support.interleaving import Grain
from tests.support.meeting import let_meet
from tests.support.pairs import PAIRS
from tests.support.postgres_server import empty
from tests.support.redis_server import RedisServer
from tests.support.snapshots import keep
from tests.support.world import World

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(900)]

# Removes a fence while the block runs.
Break = Callable[[Store], AbstractContextManager[None]]


def in_python(patching: Callable[[pytest.MonkeyPatch], None]) -> Break:
    """The fence is in Python."""

    @contextmanager
    def broken(_store: Store) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patching(patch)
            yield

    return broken


def in_rules(parts: dict[str, str]) -> Break:
    """The fence is in the rules of the database."""
    return lambda store: altered(store, parts)


# Found by concurrent verbs.


@in_python
def from_state(patch: pytest.MonkeyPatch) -> None:
    """A drain takes the worker, whatever its state has become since it was read."""

    def drain(tx: Tx, after: Effects, worker: SeenWorker, by: By, *, above_floor: bool = False) -> Outcome:
        now_seen = workers.get_for_update(tx, worker.id)
        assert now_seen is not None
        return workers.leave(tx, now_seen, State.DRAINING, by)

    patch.setattr(retiring, "drain", drain)


@in_python
def epoch(patch: pytest.MonkeyPatch) -> None:
    """A drain checks only the state, not whether the epoch is the same."""
    real = retiring.drain

    def drain(tx: Tx, after: Effects, worker: SeenWorker, by: By, *, above_floor: bool = False) -> Outcome:
        now_seen = workers.get_for_update(tx, worker.id)
        assert now_seen is not None
        same = now_seen if now_seen.state is worker.state else worker
        return real(tx, after, same, by, above_floor=above_floor)

    patch.setattr(retiring, "drain", drain)


# A claim that was found expired is ended, renewed meanwhile or not.
EXPIRY_IN_THE_RULE = in_rules({"(p ->> 'why' = 'expired' AND NOT (": "(false AND NOT ("})
# An activation that was found silent is ended, whatever has happened meanwhile.
SILENCE_IN_THE_RULE = in_rules({"IF p ? 'silent_s' AND (": "IF false AND ("})


@in_python
def floor_in_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The UPDATE that drains a parked worker does not check the floor; nothing else does."""

    def give(tx: Tx, org: OrgId) -> bool:
        orgs.decrement_parked(tx, org)
        return True

    patch.setattr(orgs, "decrement_parked_above_floor", give)


MEETINGS: dict[str, tuple[Break, str]] = {
    "from-state check": (from_state, "claim / retire"),
    "epoch check": (epoch, "claim and release of a parked one / reap"),
    "expiry in the rule": (EXPIRY_IN_THE_RULE, "renew / expiry"),
    "silence in the rule": (SILENCE_IN_THE_RULE, "activate / sweep of the silent"),
    "floor in the transaction": (floor_in_the_transaction, "reap / a waiter needs room at a floor of one"),
}


@pytest.mark.parametrize("fence", MEETINGS)
def test_removing_a_fence_breaks_concurrent_verbs(fence: str, store: Store) -> None:
    take_away, pair = MEETINGS[fence]
    with pytest.raises(AssertionError):
        let_meet(PAIRS[pair], store, Grain.TRANSACTION, preemptions=None, broken=take_away(store))


def rows_first(run: Run) -> None:
    """A sweep that reads the rows first, and then lists pods that were created meanwhile."""
    with run.deps.store.read() as tx:
        early = {w.id: w for w in workers.live(tx, states=frozenset(State))}
    with run.deps.store.read():
        """Here the other verb continues."""
    unowned = [p for p in run.cluster().pods if sweep_orphans._is_unowned(p, early.get(WorkerId(p.name)))]
    sweep_orphans._never_stamped(run, unowned)


def test_listing_rows_before_pods_breaks_the_sweep(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A young pod is left alone in any case; where none is young, only this order protects a new
    one.
    """
    monkeypatch.setattr(sweep_orphans, "YOUNG_S", 0.0)
    pair = PAIRS["spawn / sweep of orphans"]
    let_meet(pair, store, Grain.TRANSACTION, preemptions=2)
    empty(store)
    swapped = in_python(lambda patch: patch.setattr(sweep_orphans, "run", rows_first))(store)
    with pytest.raises(AssertionError):
        let_meet(pair, store, Grain.TRANSACTION, preemptions=2, broken=swapped)


# Found by the oracle of the model: short stories that use its rules.


class NegativeStory:
    """The rules of the model one after the other; the promises are checked after each."""

    def __init__(self, store: Store) -> None:
        world = World(store)
        machine: type[PoolMachine] = type("Machine", (PoolMachine,), {"world": world, "empty": keep(world)})
        self.machine = machine()
        self.then("begin")

    def then(self, rule: str, *given: Any) -> NegativeStory:
        getattr(self.machine, rule)(*given)
        self.machine.promises_are_kept()
        return self


def an_outage(story: NegativeStory) -> None:
    story.then("acquire", "acme", "default", 0).then("time_passes", 70).then("tick", "reap")


def somebody_waits_at_his_cap(story: NegativeStory) -> None:
    """A request waits at its org's cap while workers are idle; the cap is removed, and another org
    sends a request.
    """
    story.then("a_cap_changes", "acme", 1).then("acquire", "acme", "default", 0)
    story.then("everything_is_carried_out").then("acquire", "acme", "default", 20)
    story.then("a_cap_changes", "acme", 0).then("acquire", "bolt", "default", 0)


def asked_twice(story: NegativeStory) -> None:
    story.then("a_target_changes", "default", 2).then("tick", "reconcile_warm").then(
        "everything_is_carried_out"
    )
    story.then("acquire", "acme", "default", 0).then("acquire_again", 0)


def parked_for_another(story: NegativeStory) -> None:
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean").then(
        "acquire", "bolt", "default", 0
    )


def three_at_a_cap_of_one(story: NegativeStory) -> None:
    story.then("a_cap_changes", "acme", 1).then("acquire", "acme", "default", 0)
    story.then("everything_is_carried_out").then("acquire", "acme", "default", 0)


def a_stale_holder(story: NegativeStory) -> None:
    """A holder releases, the org's next request gets the worker, and the first holder releases
    again.
    """
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean")
    story.then("acquire", "acme", "default", 0).then("release", 0, "clean")


@contextmanager
def outage_rule(store: Store) -> Iterator[None]:
    """Neither the pass nor the rule checks whether the lane was open."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reap, "lane_is_open", lambda *_a, **_k: True)
        patch.setattr(claims, "_expired", lambda: (schema.claims.c.lease_expires_at < sql.now(),))
        with altered(store, {"lane_open_since + make_interval(secs => k.lease_s) < c.at": "true"}):
            yield


# Waiters are not matched before an acquire is decided, and the acquire does not look for waiters.
WAITERS_FIRST = in_rules(
    {
        "FOREACH shape IN ARRAY p_locked LOOP\n": "FOREACH shape IN ARRAY p_locked LOOP\n    CONTINUE;\n",
        "contested := c.anyone_waits AND warmpool_anyone_waits(a.profile, c.at);": "contested := false;",
    }
)
# Every delivery is a separate request.
IDEMPOTENCE = in_rules(
    {
        "each ->> 'request_id', each ->> 'profile'": "gen_random_uuid()::text, each ->> 'profile'",
    }
)
OWN_ORG_ONLY = in_rules({"w.state = 'hot_idle' AND w.org = p_org AND": "w.state = 'hot_idle' AND"})
CAP_IN_THE_RULE = in_rules({"CASE WHEN (o).cap > 0 THEN (o).cap - (o).in_use ELSE 1000000 END": "1000000"})
# The end of a claim does not check whether it has ended; it ends the worker that it had.
ENDED_ONCE = in_rules(
    {
        " AND k.ended_why IS NULL FOR UPDATE OF w, k, r SKIP LOCKED": " FOR UPDATE OF w, k, r SKIP LOCKED",
        "WHEN a.ended_at IS NOT NULL THEN": "WHEN false THEN",
        "WHERE w.id = x.worker_id AND w.claim_id = x.claim_id": "WHERE w.id = x.worker_id",
    }
)


STORIES: dict[str, tuple[Break, Callable[[NegativeStory], None]]] = {
    "outage rule for leases": (outage_rule, an_outage),
    "waiters before newcomers": (WAITERS_FIRST, somebody_waits_at_his_cap),
    "one claim a request": (IDEMPOTENCE, asked_twice),
    "one org for life": (OWN_ORG_ONLY, parked_for_another),
    "cap in the rule": (CAP_IN_THE_RULE, three_at_a_cap_of_one),
    "an ended claim moves nothing": (ENDED_ONCE, a_stale_holder),
}


@pytest.mark.parametrize("fence", STORIES)
def test_every_story_passes_with_all_fences(fence: str, store: Store) -> None:
    STORIES[fence][1](NegativeStory(store))


@pytest.mark.parametrize("fence", STORIES)
def test_removing_a_fence_fails_the_oracle(fence: str, store: Store) -> None:
    take_away, story = STORIES[fence]
    begun = NegativeStory(store)
    with take_away(store), pytest.raises((AssertionError, PoolError)):
        story(begun)


# Found by tests of the suite.


def test_removing_the_second_observation_fails_a_test(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-proof rule, the table's half: one observation counts as several."""
    real = suspects.see

    def see(*given: Any) -> suspects.Suspicion:
        return suspects.Suspicion(runs=9, age_s=real(*given).age_s)

    monkeypatch.setattr(suspects, "see", see)
    _fails(passes_tests.test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own, store)


def test_removing_the_self_report_fails_a_test(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two-proof rule, the pod's half: its self-report is not read."""
    world = World(store)
    monkeypatch.setattr(world.driver, "word", lambda _pod: Word.UNUSED)
    with pytest.raises(AssertionError):
        passes_tests.test_a_stamped_pod_is_deleted_only_on_two_proofs_one_of_them_its_own(
            world, Word.BUSY, deleted=False
        )


def test_removing_the_deadline_of_a_rule_fails_a_test(store: Store) -> None:
    with altered(store, {"AND q.deadline_at > p_at": ""}), pytest.raises(AssertionError):
        waiting_tests.test_a_waiter_past_its_deadline_is_not_served(World(store))


def test_removing_the_locks_token_fails_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that deletes any lock frees the successor's lock."""
    monkeypatch.setattr(locks, "_RELEASE", "return redis.call('del', KEYS[1])")
    with RedisServer() as server, locks_tests.client_of(server) as client:
        held = RedisLocks(client, clock=locks_tests.HandClock(), ids=RandomIds(), who="host-1")
        with pytest.raises(AssertionError):
            locks_tests.test_a_run_that_lost_its_lock_does_not_release_its_successors(held, client)


def test_removing_the_org_of_a_renewal_fails_a_test(store: Store) -> None:
    """Any caller with a claim's id renews it."""
    blind = {"coalesce(e ->> 1, k.org) = k.org": "true", "coalesce(a.v ->> 1, k.org) = k.org": "true"}
    with altered(store, blind), pytest.raises(AssertionError):
        claiming_tests.test_signed_caller_renews_only_its_own_claims(World(store), claiming.renew)


def test_removing_the_org_of_a_release_fails_a_test(store: Store) -> None:
    """Any caller with a claim's id ends it."""
    blind = {"k.org = coalesce(e.v ->> 1, k.org)": "true"}
    with altered(store, blind), pytest.raises(AssertionError):
        claiming_tests.test_signed_caller_releases_only_its_own_claims(
            World(store), claiming.release, Condition.CLEAN
        )


def _fails(test: Callable[..., None], store: Store) -> None:
    with pytest.raises(AssertionError):
        test(World(store), Word.UNUSED, deleted=True)
