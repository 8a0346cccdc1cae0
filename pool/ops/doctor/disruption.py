"""Checks of what could end a busy worker: a PodDisruptionBudget that does not select it, a priority
that is too low."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pool.drivers.kubernetes.manifests import UNCLAIMED
from pool.drivers.kubernetes.rights import NotAllowed
from pool.drivers.port import Stamp
from pool.ops.doctor.finding import Finding, Installation, Level, ok, unchecked

if TYPE_CHECKING:
    from pool.drivers.kubernetes.cluster_policies import PriorityClass

BUSY = Stamp(org=None, claim_id=None, epoch=0, busy=True)
# Cluster Autoscaler does not scale up for pods with a lower priority.
LEAST_PLACEHOLDER = -10


def budget(installation: Installation) -> Iterator[Finding]:
    """Check that exactly one PodDisruptionBudget selects busy workers (by the label of the guard), and no
    idle worker."""
    if not installation.cluster_answers:
        return
    try:
        budgets = installation.cluster.budgets()
    except NotAllowed as exc:
        yield unchecked("budget", f"whether evictions spare busy workers: {exc}")
        return
    fine, apply = (
        True,
        "run: kubectl apply -n NAMESPACE -f pool/drivers/kubernetes/pdb.yaml (the chart contains it)",
    )
    fix = apply.replace("NAMESPACE", installation.cluster.namespace)
    for name, profile in installation.settings.profiles.items():
        busy = [b for b in budgets if b.selects(installation.cluster.labels(profile, BUSY))]
        idle = [b for b in budgets if b.selects(installation.cluster.labels(profile, UNCLAIMED))]
        names = ", ".join(b.metadata.name for b in busy)
        if not busy:
            yield _bad(
                f"budget:{name}", f"no PodDisruptionBudget selects busy workers of profile {name}", fix
            )
        elif len(busy) > 1:
            evidence = (
                f"{names} all select busy workers of profile {name}; eviction fails for a "
                "pod with two budgets"
            )
            yield _bad(
                f"budget:{name}",
                evidence,
                "change the budgets so that only one selects pods with warmpool.dev/busy",
            )
        elif not busy[0].spares_all:
            evidence = (
                f"{names} allows evictions of busy workers of profile {name}: minAvailable is not 2147483647"
            )
            yield _bad(f"budget:{name}", evidence, fix)
        elif idle:
            evidence = f"{names} also selects idle workers of profile {name}: nodes cannot be drained"
            yield _warn(f"budget:{name}", evidence, 'add warmpool.dev/busy: "true" to its selector')
        else:
            continue
        fine = False
    if fine:
        yield ok("budget", "one PodDisruptionBudget selects all busy workers and no idle worker")


def priorities(installation: Installation) -> Iterator[Finding]:
    """Check that workers preempt placeholders, and that pods without a PriorityClass do not preempt
    workers.
    """
    if not installation.cluster_answers:
        return
    try:
        classes = installation.cluster.priorities()
    except NotAllowed as exc:
        yield unchecked("priorities", f"whether workers preempt placeholders: {exc}")
        return
    kubernetes, profiles = installation.settings.kubernetes, installation.settings.profiles
    headroom = any(profile.headroom for profile in profiles.values())
    found: list[Finding] = []
    below = classes.get(kubernetes.placeholder_priority_class)
    if headroom:
        found += _placeholder(kubernetes.placeholder_priority_class, below)
    for name in dict.fromkeys(
        p.priority_class or kubernetes.worker_priority_class for p in profiles.values()
    ):
        found += _worker(name, classes, below if headroom else None)
    yield from found
    if not found:
        yield ok(
            "priorities",
            "workers preempt placeholders"
            if headroom
            else "no profile has headroom: there are no placeholders",
        )


def _placeholder(name: str, found: PriorityClass | None) -> Iterator[Finding]:
    ident = "priorities:placeholder"
    fix = f"create PriorityClass {name} with value -10 and preemptionPolicy Never, as the chart does"
    if found is None:
        yield _bad(ident, f"there is no PriorityClass {name}: no placeholder can be created", fix)
    elif found.value < LEAST_PLACEHOLDER:
        evidence = (
            f"PriorityClass {name} has value {found.value}; Cluster Autoscaler adds no "
            "nodes for pods below -10"
        )
        yield _warn(ident, evidence, fix)


def _worker(name: str, classes: dict[str, PriorityClass], below: PriorityClass | None) -> Iterator[Finding]:
    ident = f"priorities:{name or 'default'}"
    found = classes.get(name) if name else next((c for c in classes.values() if c.global_default), None)
    if name and found is None:
        yield _bad(
            ident,
            f"there is no PriorityClass {name}: no worker can be created",
            "create it, or set another priority_class (profile) or worker_priority_class ([kubernetes])",
        )
        return
    value, who = (
        (found.value if found else 0),
        (f"PriorityClass {name}" if name else "the default PriorityClass"),
    )
    if below is not None and value <= below.value:
        evidence = (
            f"{who} of workers has value {value}, which is not above {below.value}, the value of "
            "placeholders: "
            "workers do not preempt placeholders"
        )
        yield _bad(
            ident, evidence, "use a PriorityClass of 0 or more for workers, and of -10 for placeholders"
        )
    elif below is not None and found is not None and not found.pushes_aside:
        evidence = f"{who} of workers has preemptionPolicy Never: workers do not preempt placeholders"
        yield _bad(
            ident, evidence, "use a PriorityClass with preemptionPolicy PreemptLowerPriority for workers"
        )
    elif value < 0:
        evidence = (
            f"{who} of workers has value {value}: any pod without a PriorityClass can preempt busy workers"
        )
        yield _warn(ident, evidence, "use a PriorityClass of 0 or more for workers")


def _bad(ident: str, evidence: str, fix: str) -> Finding:
    return Finding(id=ident, level=Level.BAD, evidence=evidence, fix=fix)


def _warn(ident: str, evidence: str, fix: str) -> Finding:
    return Finding(id=ident, level=Level.WARN, evidence=evidence, fix=fix)
