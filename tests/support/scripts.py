"""The actions of the pool, as short scripts: a start state and what happens then. Each is run once
to count its external calls and then once for every call and every way in which that call can fail.

A new verb or pass needs a script here; `test_crash_points` fails for a pass or a task without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pool.core.ids import OrgId, RequestPk, WorkerId
from pool.core.states import MoveReason, State
from pool.drivers.port import PodPhase, PodSpec, Stamp
from pool.lifecycle import claiming, observing, retiring, stamping
from pool.lifecycle.effects import Effects, transaction
from pool.passes import PASSES, run_once
from pool.passes.fallback import reap_if_dark
from pool.store import orgs
from tests.support.convergence import WorkerLife
from tests.support.world import STOP

WARM = 2
LEASE_S = 15  # of callers that crash: their claim ends soon afterwards


@dataclass(frozen=True, kw_only=True)
class Script:
    """`covers` names the tasks that the script runs."""

    name: str
    prepare: Callable[[WorkerLife], None]
    act: Callable[[WorkerLife], None]
    covers: tuple[str, ...] = field(default=())


SCRIPTS: dict[str, Script] = {}


def _script(
    name: str, prepare: Callable[[WorkerLife], None], *covers: str
) -> Callable[[Callable[[WorkerLife], None]], None]:
    def add(act: Callable[[WorkerLife], None]) -> None:
        SCRIPTS[name] = Script(name=name, prepare=prepare, act=act, covers=covers)

    return add


# Start states. In each of them a live holder has a worker, and must keep it whatever happens.


def bystander(life: WorkerLife) -> None:
    life.world.profile(warm_target=WARM)
    life.world.warm(1)
    life.hold("bystander", lease_s=3600)
    life.settle()


def warm(life: WorkerLife) -> None:
    bystander(life)
    life.settle()


def cold(life: WorkerLife) -> None:
    bystander(life)
    life.world.profile(warm_target=0)
    for w in life.world.workers(State.IDLE):
        with life.world.store.write() as tx:
            retiring.drain(tx, Effects(), w, life.world.deps.by(MoveReason.SURPLUS))
        retiring.retire(life.world.deps, w.id)
    life.settle()


def activating(life: WorkerLife) -> None:
    life.world.profile(activation_path="/configure", warm_target=WARM)
    life.world.warm(1)
    life.ask("bystander", task_id="bystander", lease_s=3600)
    life.settle()
    assert life.holders


def held(life: WorkerLife) -> None:
    warm(life)
    life.hold("acme", lease_s=LEASE_S)
    life.settle()


def waited_for(life: WorkerLife) -> None:
    cold(life)
    life.world.warm(1)
    life.hold("acme", lease_s=LEASE_S)
    life.settle()
    life.ask("bolt", task_id="waiter", wait_s=3600, lease_s=LEASE_S)


def _mine(life: WorkerLife) -> str:
    return next(c for c, g in life.holders.items() if life.world.worker(g.worker_id).org == "acme")


# Callers.

for _lives, _caller in ((True, "its caller lives"), (False, "its caller dies")):

    @_script(f"acquire, warm; {_caller}", warm, "pool.acquire", "pool.stamp", "pool.refill")
    def _(life: WorkerLife, lives: bool = _lives) -> None:
        life.ask("acme", task_id="mine", lives=lives, lease_s=LEASE_S)
        life.settle()

    @_script(f"acquire, cold; {_caller}", cold, "pool.acquire", "pool.spawn")
    def _(life: WorkerLife, lives: bool = _lives) -> None:
        life.ask("acme", task_id="mine", lives=lives, lease_s=LEASE_S, wait_s=20)
        life.world.run_pass("reconcile_warm")
        life.settle()

    @_script(f"acquire, activate; {_caller}", activating, "pool.activate")
    def _(life: WorkerLife, lives: bool = _lives) -> None:
        life.ask("acme", task_id="mine", lives=lives, lease_s=LEASE_S)
        life.settle()


def _parked(life: WorkerLife) -> None:
    held(life)
    life.release(_mine(life))
    life.settle()


@_script("acquire, parked", _parked)
def _(life: WorkerLife) -> None:
    life.ask("acme", task_id="mine", lease_s=LEASE_S)
    life.settle()


def _unwilling(life: WorkerLife) -> None:
    activating(life)
    life.world.deps.worker_api.refusals = 1  # type: ignore[attr-defined]


@_script("activate, the first worker refuses", _unwilling)
def _(life: WorkerLife) -> None:
    life.ask("acme", task_id="mine", lease_s=LEASE_S)
    life.settle()


def _protecting(life: WorkerLife) -> None:
    life.world.configure(protect_before_grant=True)
    life.world.profile(warm_target=WARM)
    life.world.warm(1)
    life.ask("bystander", task_id="bystander", lease_s=3600)
    life.settle()


@_script("acquire, protected before it is granted", _protecting)
def _(life: WorkerLife) -> None:
    life.ask("acme", task_id="mine", lease_s=LEASE_S)
    life.settle()


@_script("renew", held, "pool.renew", "pool.canary")
def _(life: WorkerLife) -> None:
    life.world.run_task("pool.canary", {})
    life.check_held()


@_script("release, clean", held, "pool.release")
def _(life: WorkerLife) -> None:
    life.release(_mine(life))
    life.settle()


@_script("release, tainted", held, "pool.retire")
def _(life: WorkerLife) -> None:
    life.release(_mine(life), "tainted")
    life.settle()


@_script("release, a request waits", waited_for)
def _(life: WorkerLife) -> None:
    life.release(_mine(life), "tainted")
    life.settle()


@_script("release while activating", activating)
def _(life: WorkerLife) -> None:
    life.ask("acme", task_id="mine", lives=False, lease_s=LEASE_S)
    (claim,) = [w.claim_id for w in life.world.workers(State.RESERVED)]
    life.release(claim or "")
    life.settle()


@_script("cancel while waiting", waited_for, "pool.cancel")
def _(life: WorkerLife) -> None:
    del life.callers["waiter"]
    life.world.cancel("bolt", "waiter")
    life.settle()


@_script("cancel while activating", activating)
def _(life: WorkerLife) -> None:
    life.ask("acme", task_id="mine", lives=False, lease_s=LEASE_S)
    life.world.cancel("acme", "mine")
    life.settle()


def _overdue(life: WorkerLife) -> None:
    cold(life)
    life.ask("bolt", task_id="waiter", wait_s=5, lease_s=LEASE_S)
    life.world.pass_time(6)


@_script("a wait is over", _overdue)
def _(life: WorkerLife) -> None:
    (pk,) = [r.pk for r in life.world.rows("requests") if r.request_id == "waiter"]
    claiming.time_out(life.world.deps, RequestPk(pk))


# Operators.


def _three_held(life: WorkerLife) -> None:
    warm(life)
    for _n in range(2):
        life.hold("acme", lease_s=3600)
        life.settle()
    life.ask("acme", task_id="third", lives=False, lease_s=LEASE_S)
    life.settle()


def _set_cap(life: WorkerLife, cap: int) -> None:
    with life.world.deps.store.write() as tx:
        orgs.change(tx, OrgId("acme"), {"cap": cap})


@_script("org cap lowered", _three_held)
def _(life: WorkerLife) -> None:
    """No holder loses its worker; the next request is refused."""
    _set_cap(life, 2)
    life.world.run_pass("reap")
    life.ask("acme", task_id="fourth", lives=False, lease_s=LEASE_S)
    life.settle()


def _capped(life: WorkerLife) -> None:
    warm(life)
    life.world.org("acme", cap=1)
    life.hold("acme", lease_s=3600)
    life.settle()
    life.ask("acme", task_id="waiter", wait_s=20, lease_s=LEASE_S)


@_script("org cap raised while a request waits", _capped)
def _(life: WorkerLife) -> None:
    _set_cap(life, 2)
    life.world.run_pass("reconcile_warm")
    life.settle()


@_script("image rollout", warm)
def _(life: WorkerLife) -> None:
    """New workers first, then the old ones drain; a holder keeps its old worker."""
    life.world.profile(image="warmpool/reference-worker:next")
    life.world.run_pass("reconcile_warm")
    life.settle()
    life.world.pass_time(11)
    life.world.run_pass("reconcile_warm")
    life.settle()


# The fleet.


def _short_of_one(life: WorkerLife) -> None:
    warm(life)
    life.world.profile(warm_target=WARM + 1)


@_script("spawn", _short_of_one)
def _(life: WorkerLife) -> None:
    life.world.refill()
    life.settle()


@_script("spawn, the pod runs another image", _short_of_one)
def _(life: WorkerLife) -> None:
    life.world.refill()
    life.world.deliver("pool.spawn")
    for name in [n for n, p in life.world.driver.pods.items() if p.phase is PodPhase.PENDING]:
        life.world.driver.change(name, image="another")
    life.settle()


@_script("retire", warm)
def _(life: WorkerLife) -> None:
    worker = life.world.workers(State.IDLE)[0]
    with transaction(life.world.deps) as (tx, after):
        retiring.drain(tx, after, worker, life.world.deps.by(MoveReason.SURPLUS))
    life.settle()


@_script("a pod ends under its holder", held)
def _(life: WorkerLife) -> None:
    granted = life.holders.pop(_mine(life))
    life.world.driver.change(
        granted.worker_id, phase=PodPhase.ENDED, ready=False, trouble="Error", exit_code=1
    )
    life.settle()


@_script("an idle pod vanishes", warm)
def _(life: WorkerLife) -> None:
    life.world.driver.take_away(life.world.workers(State.IDLE)[0].id)
    life.settle()


@_script("a pod terminates under its holder", held)
def _(life: WorkerLife) -> None:
    granted = life.holders[_mine(life)]
    life.world.driver.change(granted.worker_id, leaving="its node is drained")
    life.settle()
    life.release(granted.claim_id)
    life.settle()


@_script("stamp", held)
def _(life: WorkerLife) -> None:
    granted = life.holders[_mine(life)]
    pod = life.world.driver.pods[granted.worker_id]
    life.world.driver.stamp(pod, Stamp(org="acme", claim_id=None, epoch=granted.epoch, busy=False))
    stamping.stamp(life.world.deps, WorkerId(granted.worker_id))


# The passes, each with work of every kind.


def _something_of_everything(life: WorkerLife) -> None:
    world = life.world
    bystander(life)
    world.profile("big", warm_target=0, probe_path="/healthz")
    world.profile(headroom=1)
    world.warm(3)
    world.org("parks", hot_idle_cap=1)
    for org, ttl_s in (("acme", 5), ("parks", 500), ("parks", 500)):
        claim = world.granted(org, ttl_s=ttl_s, lease_s=LEASE_S).claim_id
        world.deliver()
        if org == "acme":
            world.release(claim)
    for claim in [c.id for c in world.rows("claims") if c.org == "parks"]:
        world.release(claim)
    world.granted("gone", lease_s=LEASE_S)
    world.refused("dogs", profile="big")
    world.waits("cats", profile="big", wait_s=5, lease_s=LEASE_S)
    world.warm(1, "big")
    _leftovers(life)
    life.hear_replies()
    for _n in range(3):
        world.pass_time(7)
        world.canary()


def _leftovers(life: WorkerLife) -> None:
    """Pods without rows, rows without pods, companions without pods; each observed once before."""
    world, driver = life.world, life.world.driver
    driver.secrets["w-gone"] = "s"
    _a_pod(life, "w-stamped")
    driver.stamp(driver.pods["w-stamped"], Stamp(org="acme", claim_id="c", epoch=3, busy=False))
    driver.pods.pop(world.workers(State.IDLE)[0].id)
    driver.grow_older(400)
    world.run_pass("sweep_orphans")
    _a_pod(life, "w-orphan")
    driver.grow_older(130)
    driver.drain_events()


def _a_pod(life: WorkerLife, name: str) -> None:
    shape = {"profile": "default", "revision": "", "image": "i", "cpu_millicores": 1, "memory_mib": 1}
    life.world.driver.create(PodSpec(name=name, port=1, grace_s=0, **shape))  # type: ignore[arg-type]
    life.world.driver.become_ready(name)


def _stuck(life: WorkerLife) -> None:
    """A slot without a pod, one whose pod does not start, and a binding whose activation is silent."""
    world = life.world
    _something_of_everything(life)
    world.profile("slow", warm_target=2, activation_path="/configure")
    world.run_pass("reconcile_warm")
    sent, world.broker.sent = world.broker.sent, []
    slots = [a["worker_id"] for t, a in sent if t == "pool.spawn"]
    world.run_task("pool.spawn", {"worker_id": slots[0]})
    world.pass_time(100)
    world.warm(1, "slow")
    world.acquire("silent", profile="slow", lease_s=LEASE_S)
    world.broker.sent.clear()
    world.pass_time(25)
    world.canary()


def _long_ago(life: WorkerLife) -> None:
    warm(life)
    claim = life.world.granted("acme", lease_s=LEASE_S).claim_id
    life.world.release(claim, "tainted")
    life.settle()
    life.world.run_pass("reap")
    life.world.pass_time(8 * 86_400)


_MOMENTS = {"sweep_stuck": _stuck, "collect_garbage": _long_ago}

for _name in PASSES:

    @_script(f"pass {_name}", _MOMENTS.get(_name, _something_of_everything), f"pool.{_name}")
    def _(life: WorkerLife, name: str = _name) -> None:
        run_once(life.world.deps, PASSES[name])
        life.settle()


@_script("the fallback reap", _something_of_everything)
def _(life: WorkerLife) -> None:
    life.world.pass_time(60)
    reap_if_dark(life.world.deps, STOP)


@_script("a row behind its pod", held)
def _(life: WorkerLife) -> None:
    """The database was restored to an earlier state: the row is given up, and the pod's self-report
    decides.
    """
    granted = life.holders.pop(_mine(life))
    pod = life.world.driver.pods[granted.worker_id]
    life.world.driver.stamp(pod, Stamp(org="acme", claim_id="later", epoch=granted.epoch + 2, busy=True))
    observing.observe(life.world.deps, life.world.driver.pods[granted.worker_id])
    life.settle()
