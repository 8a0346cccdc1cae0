"""Checks of what could end a busy worker: a PodDisruptionBudget that does not select it, a node
that does not wait for it, a priority that is too low."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pool.core.settings import Profile
from pool.drivers.kubernetes.manifests import UNCLAIMED
from pool.drivers.kubernetes.rights import NotAllowed
from pool.drivers.port import Stamp
from pool.ops.doctor.finding import Finding, Installation, Level, ok, unchecked

if TYPE_CHECKING:
    from pool.drivers.kubernetes.cluster_policies import NodePool, PriorityClass

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


def node_ceiling(installation: Installation) -> Iterator[Finding]:
    """Check how long nodes wait for pods: less than a worker's grace period ends sessions, and no limit
    blocks the node."""
    if not installation.cluster_answers:
        return
    try:
        nodepools = installation.cluster.nodepools()
    except NotAllowed as exc:
        yield unchecked("node_ceiling", f"how long nodes wait for busy workers: {exc}")
        return
    found = [f for p in installation.settings.profiles.values() for f in _ceilings(p, nodepools)]
    yield from found
    if not found:
        shown = ", ".join(p.metadata.name for p in nodepools)
        yield ok("node_ceiling", f"NodePools: {shown}" if shown else "the cluster has no NodePools")


def _ceilings(profile: Profile, nodepools: list[NodePool]) -> Iterator[Finding]:
    for pool in (p for p in nodepools if p.may_host(profile)):
        name, ident = pool.metadata.name, f"node_ceiling:{pool.metadata.name}:{profile.name}"
        if pool.ceiling_s is None:
            evidence = (
                f"NodePool {name} has no terminationGracePeriod: a busy worker of profile {profile.name} "
                "can block the removal of its node without limit"
            )
            yield _warn(
                ident, evidence, f"set terminationGracePeriod above grace_s, which is {profile.grace_s} s"
            )
        elif pool.ceiling_s <= profile.grace_s:
            evidence = (
                f"NodePool {name} removes a node after {pool.ceiling_s:.0f} s "
                "(terminationGracePeriod), which is not above "
                f"grace_s of profile {profile.name}, {profile.grace_s} s: its workers are "
                "terminated at once, busy or not"
            )
            yield _bad(ident, evidence, "raise terminationGracePeriod, or lower grace_s of the profile")


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
