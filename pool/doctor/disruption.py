"""What could take a busy worker away in spite of us: a budget that does not select it, a node that does not wait, a placeholder that goes before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pool.doctor.finding import Finding, Level, Patient, ok, unchecked
from pool.drivers.kubernetes.manifests import NOBODY
from pool.drivers.kubernetes.rights import NotAllowed
from pool.drivers.port import Stamp
from pool.settings import Profile

if TYPE_CHECKING:
    from pool.drivers.kubernetes.around import NodePool, PriorityClass

BUSY = Stamp(org=None, claim_id=None, epoch=0, busy=True)
# Cluster Autoscaler makes no room for what is below.
LEAST_PLACEHOLDER = -10


def budget(patient: Patient) -> Iterator[Finding]:
    """Eviction asks budgets, and nobody else: exactly one has to select what the guard's label marks as busy, and nothing that is free."""
    if not patient.cluster_answers:
        return
    try:
        budgets = patient.cluster.budgets()
    except NotAllowed as exc:
        yield unchecked("budget", f"{exc}: nobody looked at whether evictions spare busy workers")
        return
    fine, apply = (
        True,
        "kubectl apply -n NAMESPACE -f pool/drivers/kubernetes/pdb.yaml, which the chart brings",
    )
    fix = apply.replace("NAMESPACE", patient.cluster.namespace)
    for name, profile in patient.settings.profiles.items():
        busy = [b for b in budgets if b.selects(patient.cluster.labels(profile, BUSY))]
        idle = [b for b in budgets if b.selects(patient.cluster.labels(profile, NOBODY))]
        names = ", ".join(b.metadata.name for b in busy)
        if not busy:
            yield _bad(
                f"budget:{name}", f"no PodDisruptionBudget selects busy workers of profile {name}", fix
            )
        elif len(busy) > 1:
            evidence = (
                f"{names} all select busy workers of profile {name}; eviction fails where two budgets meet"
            )
            yield _bad(f"budget:{name}", evidence, "let only one of them select pods with warmpool.dev/busy")
        elif not busy[0].spares_all:
            evidence = (
                f"{names} lets busy workers of profile {name} be evicted: minAvailable is not 2147483647"
            )
            yield _bad(f"budget:{name}", evidence, fix)
        elif idle:
            evidence = f"{names} selects idle workers of profile {name}, too: nodes can not be drained"
            yield _warn(f"budget:{name}", evidence, 'let its selector ask for warmpool.dev/busy: "true"')
        else:
            continue
        fine = False
    if fine:
        yield ok("budget", "one budget selects busy workers, and no idle one")


def node_ceiling(patient: Patient) -> Iterator[Finding]:
    """A node that waits for less than a worker's grace ends sessions; one that waits for ever is never replaced."""
    if not patient.cluster_answers:
        return
    try:
        nodepools = patient.cluster.nodepools()
    except NotAllowed as exc:
        yield unchecked("node_ceiling", f"{exc}: nobody looked at how long nodes wait for busy workers")
        return
    found = [f for p in patient.settings.profiles.values() for f in _ceilings(p, nodepools)]
    yield from found
    if not found:
        told = ", ".join(p.metadata.name for p in nodepools) or "none: the cluster has no NodePools"
        yield ok("node_ceiling", told)


def _ceilings(profile: Profile, nodepools: list[NodePool]) -> Iterator[Finding]:
    for pool in (p for p in nodepools if p.may_host(profile)):
        name, ident = pool.metadata.name, f"node_ceiling:{pool.metadata.name}:{profile.name}"
        if pool.ceiling_s is None:
            evidence = f"NodePool {name} has no terminationGracePeriod: a busy worker of profile {profile.name} can keep its node for ever"
            yield _warn(ident, evidence, f"set one above grace_s, which is {profile.grace_s} s")
        elif pool.ceiling_s <= profile.grace_s:
            evidence = (
                f"NodePool {name} takes a node away after {pool.ceiling_s:.0f} s (terminationGracePeriod), and workers of profile "
                f"{profile.name} have a grace of {profile.grace_s} s: they are told to end at once, busy or not"
            )
            yield _bad(ident, evidence, "raise terminationGracePeriod, or lower grace_s of the profile")


def priorities(patient: Patient) -> Iterator[Finding]:
    """Placeholders give way to workers, and workers to nobody who does not matter more."""
    if not patient.cluster_answers:
        return
    try:
        classes = patient.cluster.priorities()
    except NotAllowed as exc:
        yield unchecked("priorities", f"{exc}: nobody looked at whether placeholders give way to workers")
        return
    kubernetes, headroom = patient.settings.kubernetes, patient.settings.pool.headroom
    found: list[Finding] = []
    below = classes.get(kubernetes.placeholder_priority_class)
    if headroom:
        found += _placeholder(kubernetes.placeholder_priority_class, below)
    for name in dict.fromkeys(
        p.priority_class or kubernetes.worker_priority_class for p in patient.settings.profiles.values()
    ):
        found += _worker(name, classes, below if headroom else None)
    yield from found
    if not found:
        yield ok("priorities", "workers go before placeholders" if headroom else "there is no headroom")


def _placeholder(name: str, found: PriorityClass | None) -> Iterator[Finding]:
    ident, fix = "priorities:placeholder", "value -10 and preemptionPolicy Never, as the chart makes it"
    if found is None:
        yield _bad(ident, f"there is no PriorityClass {name}: no placeholder can be made", fix)
    elif found.value < LEAST_PLACEHOLDER:
        evidence = (
            f"PriorityClass {name} is {found.value}; Cluster Autoscaler makes no room for what is below -10"
        )
        yield _warn(ident, evidence, fix)


def _worker(name: str, classes: dict[str, PriorityClass], below: PriorityClass | None) -> Iterator[Finding]:
    ident = f"priorities:{name or 'default'}"
    found = classes.get(name) if name else next((c for c in classes.values() if c.global_default), None)
    if name and found is None:
        yield _bad(
            ident, f"there is no PriorityClass {name}: no worker can be made", "make it, or name another"
        )
        return
    value, who = (found.value if found else 0), (f"PriorityClass {name}" if name else "the cluster's default")
    if below is not None and value <= below.value:
        evidence = (
            f"{who} is {value}, not above the placeholders' {below.value}: they do not give way to workers"
        )
        yield _bad(ident, evidence, "give workers a class of 0 or more, placeholders one of -10")
    elif below is not None and found is not None and not found.pushes_aside:
        evidence = f"{who} has preemptionPolicy Never: placeholders do not give way to workers"
        yield _bad(ident, evidence, "give workers a class that may push others aside")
    elif value < 0:
        evidence = f"{who} is {value}: any pod without a class pushes busy workers aside"
        yield _warn(ident, evidence, "give workers a class of 0 or more")


def _bad(ident: str, evidence: str, fix: str) -> Finding:
    return Finding(id=ident, level=Level.BAD, evidence=evidence, fix=fix)


def _warn(ident: str, evidence: str, fix: str) -> Finding:
    return Finding(id=ident, level=Level.WARN, evidence=evidence, fix=fix)
