"""sweep_stuck: end what should have moved on.

Slots that did not become ready, claims whose activation has no heartbeat, lost messages, and
workers that do not answer their probe. An activation with recent heartbeats is never ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pool.core import planning
from pool.core.ids import ProfileName
from pool.core.periods import PERIODS_S
from pool.core.records import Held, SeenWorker
from pool.core.states import CLAIMABLE, MoveReason, State
from pool.drivers.port import Pod
from pool.lifecycle import activating, item_errors, retiring, spawning
from pool.lifecycle.effects import transaction
from pool.metrics.catalog import Item
from pool.passes.running import Pass, Run
from pool.passes.suspecting import seen_again
from pool.store import now, row_scans, suspects, workers
from pool.store.suspects import PROBE_FAILURES, SuspectKind

# `reserved` and `activating` workers need not answer yet.
_PROBED = CLAIMABLE | {State.HOT}
_PROBES_AT_ONCE = 16
_PROBE_TIMEOUT_S = 2.0


def run(run: Run) -> None:
    """Run all sweeps. Pods are read before rows."""
    pods = run.cluster().named()
    _stuck_slots(run, pods)
    _lost_spawns(run)
    _silent_claims(run)
    _probes(run)


def _stuck_slots(run: Run, pods: Mapping[str, Pod]) -> None:
    pool = run.deps.settings.pool
    with run.deps.store.read() as tx:
        old = workers.slots_older_than(tx, pool.stuck_cutoff_s)
        kept_too_long = set(workers.slots_older_than(tx, pool.unschedulable_limit_s))
        # An unschedulable slot is kept rather than replaced, and does not count toward the limit of
        # a run.
        stuck = [i for i in old if i in kept_too_long or not ((pod := pods.get(i)) and pod.unschedulable)]
        found = workers.get_many(tx, stuck[: run.limit + 1])
    for slot in run.bounded([found[i] for i in stuck[: run.limit + 1] if i in found]):
        pod = pods.get(slot.id)
        if slot.state is not State.SPAWNING:
            continue
        lacks_node = pod is not None and pod.unschedulable
        reason = MoveReason.UNSCHEDULABLE if lacks_node else MoveReason.NOT_READY
        limit_s = pool.unschedulable_limit_s if lacks_node else pool.stuck_cutoff_s
        trouble = f": {pod.trouble}" if pod is not None and pod.trouble else ""
        detail = f"not ready after {limit_s} s{trouble}"
        run.step("slot_freed", slot.id, partial(spawning.fail, run.deps, slot, reason, detail))


def _lost_spawns(run: Run) -> None:
    """Send the task of a slot without a pod again if its message is older than its budget, once per
    budget.
    """
    with run.deps.store.read() as tx:
        found = workers.unsent_slots(
            tx, older_than_s=run.deps.settings.pool.spawn_budget_s, limit=run.limit + 1
        )
    for slot in run.bounded(found):
        run.step("spawn_sent_again", slot.id, partial(_send_again, run, slot))


def _send_again(run: Run, slot: SeenWorker) -> None:
    with run.deps.store.write() as tx:
        workers.record_resend(tx, slot)
    run.deps.broker.send("pool.spawn", worker_id=slot.id)


def _silent_claims(run: Run) -> None:
    cutoff_s = run.deps.settings.pool.activation_stuck_s
    with run.deps.store.read() as tx:
        found = workers.silent_bindings(tx, for_s=cutoff_s, limit=run.limit + 1)
    for worker in run.bounded(found):
        if worker.claim_id is not None:
            held = Held(worker_id=worker.id, claim_id=worker.claim_id, epoch=worker.epoch)
            give_up = partial(activating.give_up, run.deps, held, silent_for_s=cutoff_s)
            run.step("binding_freed", worker.id, give_up)


def _probes(run: Run) -> None:
    """Probe the workers of profiles that have a probe.

    After three consecutive failures, in any replica, an unclaimed worker is drained. A worker in use
    is left alone and reported, to its holder as well. If there are more than fit one run, those that
    failed are probed again and the others take turns.
    """
    probed = {name: p.probe_path for name, p in run.deps.settings.profiles.items() if p.probe_path}
    if not probed:
        return
    with run.deps.store.read() as tx:
        candidates = [i for name in probed for i in row_scans.ids_in(tx, ProfileName(name), _PROBED)]
        failed, turn = (
            suspects.subjects(tx, SuspectKind.PROBE),
            int(now(tx).timestamp() // PERIODS_S[run.name]),
        )
        asked = planning.whose_turn(candidates, failed, most=run.limit, turn=turn)
        some = [w for w in workers.get_many(tx, asked).values() if w.state in _PROBED]

    def healthy(worker: SeenWorker) -> bool:
        url = f"{worker.endpoint}{probed[worker.profile]}"
        try:
            return run.deps.worker_api.healthy(url, _PROBE_TIMEOUT_S)
        except Exception as exc:  # noqa: BLE001 - a failure of the prober is no failure of the worker
            item_errors.record_skipped(run.deps.metrics, Item.PROBE, worker.id, exc)
            return True

    with ThreadPoolExecutor(_PROBES_AT_ONCE) as threads:
        answers = list(threads.map(healthy, some))
    run.raise_if_interrupted()  # a probe that a shutdown interrupted is not a failure
    failing = [w for w, ok in zip(some, answers, strict=True) if not ok]
    seen = seen_again(run, SuspectKind.PROBE, {w.id: "does not answer its probe" for w in failing})
    for worker in failing:
        if worker.state in CLAIMABLE and seen[worker.id].runs >= PROBE_FAILURES:
            run.step("unhealthy_drained", worker.id, partial(_drain, run, worker))


def _drain(run: Run, worker: SeenWorker) -> None:
    by = run.deps.by(MoveReason.PROBE_FAILED, f"{PROBE_FAILURES} consecutive probes failed")
    with transaction(run.deps) as (tx, after):
        retiring.drain(tx, after, worker, by)


SWEEP_STUCK = Pass(name="sweep_stuck", run=run)
