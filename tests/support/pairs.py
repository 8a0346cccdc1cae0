"""Pairs of verbs that touch one worker, each with the state in which they meet. Whatever the order
of their steps, the result must equal that of a serial run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pool.core.contract import Acquire, Cancel, Granted, Pending, RefusedAnswer, Release, Renew
from pool.core.ids import ClaimId, OrgId, ProfileName, RequestPk, WorkerId
from pool.core.records import Held, ReplyTo, SeenWorker
from pool.core.states import MoveReason, State
from pool.lifecycle import activating as activation
from pool.lifecycle import claiming, observing, retiring, spawning, stamping
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import Effects
from pool.passes import reap, reconcile_warm, sweep_orphans, sweep_stuck
from pool.passes.running import Run
from pool.store import orgs, workers
from tests.support.convergence import WorkerLife
from tests.support.interleaving import Verb

DEFAULT = ProfileName("default")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """`verbs` is called in the state that `prepare` created, and returns the two verbs. Results
    beyond the serial ones are allowed only as stated here: `mended` is a part of a pass that may be
    needed first; with `may_miss` the first verb may be refused because the second had its worker
    locked and then left it.
    """

    name: str
    prepare: Callable[[WorkerLife], None]
    verbs: Callable[[WorkerLife], tuple[Verb, Verb]]
    mended: Verb | None = None
    may_miss: bool = False


PAIRS: dict[str, Pair] = {}


def _pair(
    name: str, prepare: Callable[[WorkerLife], None], **allowed: Any
) -> Callable[[Callable[[WorkerLife], tuple[Verb, Verb]]], None]:
    def add(verbs: Callable[[WorkerLife], tuple[Verb, Verb]]) -> None:
        PAIRS[name] = Pair(name=name, prepare=prepare, verbs=verbs, **allowed)

    return add


def ended(life: WorkerLife, results: tuple[object, ...]) -> tuple[Any, ...]:
    """Return the result without ids: answers, and the rows that matter."""
    world = life.world
    rows = Counter((str(w.state), w.org, w.epoch, w.leaving_since is None) for w in world.workers())
    claims = Counter((c.org, c.ended_why, c.abandoned) for c in world.rows("claims"))
    asked = Counter((r.org, r.request_id, r.state, r.reason) for r in world.rows("requests"))
    in_use = tuple((o.id, o.in_use, o.parked) for o in sorted(world.rows("orgs"), key=lambda o: o.id))
    stamped = Counter((p.annotations.get("warmpool.dev/org"), p.epoch) for p in world.driver.pods.values())
    counted = (_sorted(rows), _sorted(claims), _sorted(asked), _sorted(stamped))
    return tuple(map(_plain, results)), *counted, in_use


MISSED = ("refused", "no_warm_worker")


def without_the_first(outcome: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what is equal whether the first verb was refused or never ran: workers, claims,
    stamps, counters.
    """
    return outcome[1], outcome[2], outcome[4], outcome[5]


def _sorted(counted: Counter[Any]) -> tuple[Any, ...]:
    return tuple(sorted(counted.items(), key=repr))


def _plain(result: object) -> object:
    match result:
        case tuple():
            return tuple(map(_plain, result))
        case Granted():
            return "granted", str(result.source), result.epoch
        case RefusedAnswer():
            return "refused", str(result.reason)
        case Pending():
            return "pending"
        case {"renewed": renewed, "gone": gone}:
            return "renewed", len(renewed), *sorted(gone.values())
        case dict():
            return repr(sorted(result.items(), key=repr))
    return result


# Verbs.


def acquire(org: str, request_id: str = "r1", **given: Any) -> Verb:
    asked = Acquire.parse({"org": org, "request_id": request_id, **given}, task_id=request_id)
    return lambda deps: claiming.acquire(deps, asked, ReplyTo(task_id=f"{org}-{request_id}"))


def there_and_back(org: str) -> Verb:
    """Claim and release at once."""

    def run(deps: Deps) -> object:
        answer = acquire(org)(deps)
        return answer, release(answer.claim_id)(deps) if isinstance(answer, Granted) else None

    return run


def release(claim_id: str, condition: str = "clean") -> Verb:
    return lambda deps: claiming.release(deps, Release.parse(claim_id, condition))["outcome"]


def renew(claim_id: str) -> Verb:
    return lambda deps: claiming.renew(deps, Renew.parse([claim_id]))


def cancel(org: str, request_id: str) -> Verb:
    return lambda deps: claiming.cancel(deps, Cancel.parse(org, request_id))["outcome"]


def part(room: ModuleType, step: str, *given: Any) -> Verb:
    """Run one part of a pass with the room's current code."""

    def run(deps: Deps) -> object:
        getattr(room, step)(Run(deps=deps, name="reap"), *given)
        return None

    return run


def drain(worker: SeenWorker) -> Verb:
    def run(deps: Deps) -> object:
        after = Effects()
        with deps.store.write() as tx:
            outcome = retiring.drain(tx, after, worker, deps.by(MoveReason.SURPLUS))
        return outcome, *(retiring.retire(deps, w) for w in after.retire)

    return run


def activate(held: Held) -> Verb:
    return lambda deps: activation.activate(deps, held)


def time_out(pk: RequestPk) -> Verb:
    return lambda deps: claiming.time_out(deps, pk)


def refill(deps: Deps) -> object:
    reconcile_warm.refill_once(deps, DEFAULT)
    return None


def refill_and_spawn(deps: Deps) -> object:
    refill(deps)
    with deps.store.read() as tx:
        slots = workers.live(tx, states=frozenset({State.SPAWNING}))
    return tuple(spawning.spawn(deps, slot.id) for slot in slots)


def seen(life: WorkerLife, worker_id: str) -> Verb:
    """Deliver the watch event of this pod as it is now."""
    pod = life.world.driver.pods[worker_id]
    return lambda deps: observing.observe(deps, pod)


def lose(worker: SeenWorker) -> Verb:
    return lambda deps: observing.lose(deps, worker, deps.by(MoveReason.POD_GONE))


def stamp(worker_id: str) -> Verb:
    return lambda deps: stamping.stamp(deps, WorkerId(worker_id))


def set_org(org: str, **settings: Any) -> Verb:
    def run(deps: Deps) -> object:
        with deps.store.write() as tx:
            orgs.change(tx, OrgId(org), settings)
        return None

    return run


# States in which verbs meet.


def one_warm(life: WorkerLife) -> None:
    life.world.profile(warm_target=0)
    life.world.org("acme")
    life.world.org("bolt")
    life.world.warm(1)


def two_warm_one_allowed(life: WorkerLife) -> None:
    one_warm(life)
    life.world.warm(1)
    life.world.org("acme", cap=1)


def surplus(life: WorkerLife) -> None:
    one_warm(life)
    life.world.pass_time(400)


def held(life: WorkerLife) -> None:
    one_warm(life)
    life.world.granted("acme", request_id="before", lease_s=5)


def overdue(life: WorkerLife) -> None:
    held(life)
    for _n in range(3):
        life.world.pass_time(8)
        life.world.canary()


def parked(life: WorkerLife) -> None:
    held(life)
    life.world.release(_claim(life), "clean")


def parked_too_long(life: WorkerLife) -> None:
    parked(life)
    life.world.pass_time(100)


def floor_of_one(life: WorkerLife) -> None:
    life.world.profile(warm_target=0)
    life.world.org("acme", hot_idle_floor=1)
    life.world.warm(2)
    for claim in [life.world.granted("acme").claim_id for _n in range(2)]:
        life.world.release(claim)
    life.world.pass_time(100)


def floor_of_one_at_the_cap(life: WorkerLife) -> None:
    """The worker that was parked first has the latest end of its TTL, so that a reap and a drain
    for room choose differently.
    """
    life.world.profile(warm_target=0)
    life.world.org("acme", hot_idle_floor=1)
    life.world.warm(2)
    for granted in [life.world.granted("acme", ttl_s=ttl_s) for ttl_s in (90, 50)]:
        life.world.release(granted.claim_id)
    life.world.configure(max_workers=2)
    life.world.waits("bolt", wait_s=3600)
    life.world.pass_time(100)


def reserved(life: WorkerLife) -> None:
    life.world.profile(warm_target=0, activation_path="/configure")
    life.world.org("acme")
    life.world.warm(1)
    life.world.acquire("acme", request_id="r1")


def silent(life: WorkerLife) -> None:
    reserved(life)
    life.world.pass_time(60)


def waiting(life: WorkerLife) -> None:
    held(life)
    life.world.acquire("bolt", request_id="r1", wait_s=3600, task_id="bolt-r1")


def waiting_for_own(life: WorkerLife) -> None:
    held(life)
    life.world.acquire("acme", request_id="r1", wait_s=3600, task_id="acme-r1")


def given_up_waiting(life: WorkerLife) -> None:
    """The deadline has passed, and the waiter has no answer yet."""
    held(life)
    life.world.acquire("acme", request_id="r1", wait_s=5, task_id="acme-r1")
    life.world.pass_time(6)


def almost_ready(life: WorkerLife) -> None:
    life.world.profile(warm_target=1)
    life.world.org("acme")
    life.world.refill()
    life.world.deliver("pool.spawn")
    (slot,) = life.world.workers(State.SPAWNING)
    life.world.driver.become_ready(slot.id)


def missed(life: WorkerLife) -> None:
    life.world.profile(warm_target=2)
    life.world.org("acme")
    life.world.refused("acme")


def short_of_one(life: WorkerLife) -> None:
    one_warm(life)
    life.world.profile(warm_target=2)


def stuck_slot(life: WorkerLife) -> None:
    almost_ready(life)
    life.world.pass_time(130)


def _claim(life: WorkerLife) -> str:
    return str(next(c.id for c in life.world.rows("claims") if c.ended_at is None))


def _only(life: WorkerLife, *states: State) -> SeenWorker:
    return life.world.workers(*states)[0]


def _held(life: WorkerLife) -> Held:
    worker = _only(life, State.RESERVED)
    return Held(worker_id=worker.id, claim_id=ClaimId(worker.claim_id or ""), epoch=worker.epoch)


def _pk(life: WorkerLife) -> RequestPk:
    return RequestPk(next(r.pk for r in life.world.rows("requests") if r.request_id == "r1"))


# The pairs.

_pair("claim / claim", one_warm)(lambda _life: (acquire("acme"), acquire("bolt")))
_pair("claim / the same claim", one_warm)(lambda _life: (acquire("acme"), acquire("acme")))
_pair("claim / claim at a cap of one", two_warm_one_allowed)(
    lambda _life: (acquire("acme", "r1"), acquire("acme", "r2"))
)
# A claim that begins during the change is not counted yet: reap counts it (ADR 4).
_pair("claim / a cap is set", one_warm, mended=part(reap, "_count_uncounted"))(
    lambda _life: (acquire("acme"), set_org("acme", cap=1))
)
_pair("claim / reap of surplus", surplus)(lambda _life: (acquire("acme"), part(reap, "_idle_surplus")))
_pair("claim / retire", one_warm)(lambda life: (acquire("acme"), drain(_only(life, State.IDLE))))
_pair("claim / its pod is gone", one_warm)(lambda life: (acquire("acme"), lose(_only(life, State.IDLE))))
_pair("claim of a parked one / reap", parked_too_long)(
    lambda _life: (acquire("acme"), part(reap, "_parked_past_end"))
)
_pair("claim and release of a parked one / reap", parked_too_long)(
    lambda _life: (there_and_back("acme"), part(reap, "_parked_past_end"))
)
_pair("spawn / sweep of orphans", short_of_one)(lambda _life: (refill_and_spawn, part(sweep_orphans, "run")))
_pair("two reaps at a floor of one", floor_of_one)(
    lambda _life: (part(reap, "_parked_past_end"), part(reap, "_parked_past_end"))
)
_pair("reap / a waiter needs room at a floor of one", floor_of_one_at_the_cap)(
    lambda _life: (part(reap, "_parked_past_end"), refill)
)
_pair("claim / two parked at a floor of one", floor_of_one, may_miss=True)(
    lambda _life: (acquire("acme"), part(reap, "_parked_past_end"))
)
_pair("release / expiry", overdue)(lambda life: (release(_claim(life)), part(reap, "_expire_claims")))
_pair("renew / expiry", overdue)(lambda life: (renew(_claim(life)), part(reap, "_expire_claims")))
_pair("renew / release", held)(lambda life: (renew(_claim(life)), release(_claim(life))))
_pair("release / release", held)(lambda life: (release(_claim(life)), release(_claim(life), "tainted")))
_pair("release / its pod is gone", held)(lambda life: (release(_claim(life)), lose(_only(life, State.HOT))))
_pair("release / claim of the same org", held)(lambda life: (release(_claim(life)), acquire("acme")))
_pair("release / a request begins to wait", held)(
    lambda life: (release(_claim(life)), acquire("acme", wait_s=3600))
)
_pair("tainted release / a request waits", waiting)(lambda life: (release(_claim(life), "tainted"), refill))
_pair("release / a waiter gives up", waiting_for_own)(
    lambda life: (release(_claim(life)), cancel("acme", "r1"))
)
_pair("release / a new request while another waits", waiting_for_own)(
    lambda life: (release(_claim(life)), acquire("acme", "r2"))
)
_pair("park / a floor is set", held, mended=part(reap, "_count_uncounted"))(
    lambda life: (release(_claim(life)), set_org("acme", hot_idle_floor=1))
)
_pair("ready / a request begins to wait", almost_ready)(
    lambda life: (seen(life, _only(life, State.SPAWNING).id), acquire("acme", wait_s=3600))
)
_pair("ready / sweep of stuck slots", stuck_slot)(
    lambda life: (
        seen(life, _only(life, State.SPAWNING).id),
        part(sweep_stuck, "_stuck_slots", {}),
    )
)
_pair("ready / ready", almost_ready)(lambda life: (seen(life, _only(life, State.SPAWNING).id),) * 2)
_pair("activate / activate", reserved)(lambda life: (activate(_held(life)),) * 2)
_pair("activate / sweep of the silent", silent)(
    lambda life: (
        activate(_held(life)),
        part(sweep_stuck, "_silent_claims"),
    )
)
_pair("activate / cancel", reserved)(lambda life: (activate(_held(life)), cancel("acme", "r1")))
_pair("activate / release", reserved)(lambda life: (activate(_held(life)), release(_claim(life))))
_pair("stamp / stamp", held)(lambda life: (stamp(_only(life, State.HOT).id),) * 2)
_pair("stamp / release", held)(lambda life: (stamp(_only(life, State.HOT).id), release(_claim(life))))
_pair("reconcile / reconcile", missed)(lambda _life: (refill, refill))
_pair("time out / release", given_up_waiting)(lambda life: (time_out(_pk(life)), release(_claim(life))))
