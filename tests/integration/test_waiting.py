"""Waiting, handing over, answering and cancelling: no wake-up is lost, every request gets one
answer.
"""

from __future__ import annotations

from pool.core.contract import Granted, Pending
from pool.core.states import Reason, State
from pool.store import Store
from pool.store.schema import requests
from tests.support.statements import statements
from tests.support.world import World


def _answer(world: World, task_id: str) -> dict[str, object]:
    answers = world.broker.answers_for(task_id)
    assert len(answers) == 1, answers
    return answers[0]


def test_a_released_worker_goes_to_the_waiter_in_the_same_step(world: World) -> None:
    world.warm(1)
    holder = world.granted("acme")
    task = world.waits("acme")
    world.release(holder.claim_id)
    answer = _answer(world, task)
    assert answer["outcome"] == "granted"
    assert answer["worker_id"] == holder.worker_id
    assert answer["source"] == "hot_idle"
    assert world.state_of(holder.worker_id) is State.HOT


def test_a_worker_that_becomes_ready_goes_to_a_waiter_of_any_org(world: World) -> None:
    task = world.waits("acme")
    world.refill()
    world.deliver("pool.spawn")
    (worker, *_rest) = world.driver.pods
    world.driver.become_ready(worker)
    world.observe()
    assert _answer(world, task)["worker_id"] == worker
    assert world.state_of(worker) is State.HOT


def test_a_later_request_does_not_take_a_worker_that_a_waiter_could_use(world: World) -> None:
    world.profile(warm_target=0)
    waiter = world.waits("acme")
    assert world.refused("bolt").reason is Reason.NO_WARM_WORKER
    world.warm(1)
    assert _answer(world, waiter)["outcome"] == "granted"
    assert world.refused("bolt").reason is Reason.NO_WARM_WORKER


def test_a_fresh_acquire_serves_the_waiters_before_itself(world: World) -> None:
    """A warm worker that was not matched to a waiter (its event was lost) goes to the waiter, not
    to the next request.
    """
    waiter = world.waits("acme")
    with world.store.write() as tx:
        tx.execute(
            requests.update().values(
                state="refused", reason="no_warm_worker", decided_at=requests.c.created_at
            )
        )
    world.warm(1)
    with world.store.write() as tx:
        tx.execute(requests.update().values(state="waiting", reason=None, decided_at=None))
    assert world.refused("bolt").reason is Reason.NO_WARM_WORKER
    assert _answer(world, waiter)["outcome"] == "granted"


def test_an_orgs_own_parked_worker_is_not_withheld_by_waiters_of_other_orgs(world: World) -> None:
    world.warm(1)
    holder = world.granted("acme")
    world.release(holder.claim_id)
    world.waits("bolt")
    assert world.granted("acme").worker_id == holder.worker_id


def test_the_org_with_the_least_use_for_its_weight_is_served_first(world: World) -> None:
    world.profile(warm_target=0)
    world.warm(3)
    world.org("heavy", weight=3)
    holders = [world.granted("light"), world.granted("heavy"), world.granted("heavy")]
    assert len(holders) == 3
    light, heavy = world.waits("light"), world.waits("heavy")
    world.warm(1)
    assert _answer(world, heavy)["outcome"] == "granted"
    assert world.broker.answers_for(light) == []


def test_within_an_org_the_oldest_waiter_is_served_first(world: World) -> None:
    first = world.waits("acme")
    world.pass_time(1)
    second = world.waits("acme")
    world.warm(1)
    assert _answer(world, first)["outcome"] == "granted"
    assert world.broker.answers_for(second) == []


def test_a_waiter_at_its_orgs_cap_delays_no_other_waiter(world: World) -> None:
    world.org("acme", cap=1)
    world.warm(2)
    world.granted("acme")
    capped = world.waits("acme")
    world.granted("bolt")
    assert world.broker.answers_for(capped) == []


def test_a_waiter_at_its_orgs_cap_is_served_when_the_org_releases_elsewhere(world: World) -> None:
    world.profile("big")
    world.org("acme", cap=1)
    world.warm(1)
    world.warm(1, "big")
    holder = world.granted("acme")
    task = world.waits("acme", profile="big")
    world.release(holder.claim_id)
    assert _answer(world, task)["outcome"] == "granted"


def test_a_waiter_past_its_deadline_is_not_served(world: World) -> None:
    task = world.waits("acme", wait_s=5)
    world.pass_time(6)
    world.warm(1)
    assert world.broker.answers_for(task) == []
    world.run_pass("reap")
    assert _answer(world, task)["reason"] == "wait_timeout"
    assert len(world.workers(State.IDLE)) == 1


def test_the_timer_answers_a_waiter_only_after_its_deadline_on_the_databases_clock(world: World) -> None:
    from pool.lifecycle import claiming

    task = "timed"
    pending = world.acquire("acme", task_id=task, wait_s=5)
    assert isinstance(pending, Pending)
    assert not claiming.time_out(world.deps, pending.request_pk)
    assert world.broker.answers_for(task) == []
    world.pass_time(6)
    assert claiming.time_out(world.deps, pending.request_pk)
    assert _answer(world, task)["reason"] == "wait_timeout"
    assert not claiming.time_out(world.deps, pending.request_pk)


def test_a_waiting_request_delivered_twice_answers_both(world: World) -> None:
    world.acquire("acme", task_id="one", request_id="r", wait_s=30)
    world.acquire("acme", task_id="two", request_id="r", wait_s=30)
    world.acquire("acme", task_id="two", request_id="r", wait_s=30)
    world.warm(2)
    one, two = _answer(world, "one"), _answer(world, "two")
    assert one == two
    assert len(world.workers(State.HOT)) == 1


def test_a_cancelled_waiter_is_answered_once_and_never_served(world: World) -> None:
    task = "t"
    world.acquire("acme", task_id=task, request_id="r", wait_s=30)
    assert world.cancel("acme", "r") == "cancelled"
    assert _answer(world, task)["reason"] == "cancelled"
    world.warm(1)
    assert len(world.workers(State.IDLE)) == 1
    assert world.cancel("acme", "r") == "already_answered"
    assert world.cancel("acme", "other") == "unknown_request"


def test_an_answer_decided_but_not_delivered_is_delivered_by_the_reap(world: World) -> None:
    task = world.waits("acme")
    world.broker.down = True
    world.warm(1)
    assert world.broker.answers_for(task) == []
    world.broker.down = False
    world.pass_time(4)
    world.run_pass("reap")
    assert _answer(world, task)["outcome"] == "granted"
    world.pass_time(10)
    world.run_pass("reap")
    assert len(world.broker.answers_for(task)) == 1


def test_an_answer_that_was_not_marked_as_replied_is_delivered_again(world: World) -> None:
    """The process died between the commit and the reply."""
    world.warm(1)
    granted = world.acquire("acme", task_id="t")
    assert isinstance(granted, Granted)
    world.pass_time(4)
    world.run_pass("reap")
    assert _answer(world, "t") == granted.as_dict()


def test_a_request_at_the_pools_cap_can_wait(world: World) -> None:
    world.configure(max_workers=1)
    world.warm(1)
    holder = world.granted("acme")
    task = world.waits("acme")
    world.release(holder.claim_id)
    assert _answer(world, task)["outcome"] == "granted"


def test_a_request_refused_before_may_wait_now(world: World) -> None:
    world.acquire("acme", task_id="one", request_id="r", wait_s=5)
    world.pass_time(6)
    world.run_pass("reap")
    world.acquire("acme", task_id="two", request_id="r", wait_s=5)
    world.warm(1)
    assert _answer(world, "one")["reason"] == "wait_timeout"
    assert _answer(world, "two")["outcome"] == "granted"


def test_a_waiter_that_is_about_to_be_served_is_not_overtaken(store: Store) -> None:
    """Its row is locked by another transaction, which may yet fail: the worker that it could use is
    not granted to a later request.
    """
    world = World(store)
    world.waits("acme")
    with world.store.write() as tx:
        tx.execute(
            requests.update().values(
                state="refused", reason="no_warm_worker", decided_at=requests.c.created_at
            )
        )
    world.warm(1)
    with world.store.write() as tx:
        tx.execute(requests.update().values(state="waiting", reason=None, decided_at=None))
    with world.store.write() as serving:
        serving.execute(requests.select().with_for_update())
        assert world.refused("bolt").reason is Reason.NO_WARM_WORKER
    assert len(world.workers(State.IDLE)) == 1
    world.check()


def test_a_waiter_past_its_deadline_does_not_block_the_next_one(world: World) -> None:
    world.waits("acme", wait_s=5)
    world.pass_time(1)
    patient = world.waits("acme", wait_s=600)
    world.pass_time(5)
    world.warm(1)
    assert _answer(world, patient)["outcome"] == "granted"


def test_a_wait_and_a_hand_over_take_a_bounded_number_of_statements(store: Store) -> None:
    """The first waiting request is decided a second time, with the profile's lock; a release hands
    its worker over in the statement that ends the claim, and marks the answer as delivered.
    """
    world = World(store)
    world.warm(1)
    held = world.granted("acme")
    with statements(store) as asked:
        task = world.waits("acme")
    assert len(asked) == 2, asked
    with statements(store) as asked:
        world.release(held.claim_id)
    assert len(asked) == 2, asked
    assert _answer(world, task)["outcome"] == "granted"
