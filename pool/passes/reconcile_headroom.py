"""reconcile_headroom: keep a constant number of placeholder pods for each profile, which workers preempt.

Only live placeholders of the present shape count. Nothing that workers do raises the number; 0
deletes all, and so does removing the profile. A process whose build of a profile is not the wanted one
leaves the profile's placeholders alone, so that two configurations do not replace each other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pool.core.profiles import PlaceholderSize, placeholder_revision
from pool.core.settings import Profile
from pool.drivers.port import NOTE_REVISION, Pod, PodPhase, PodRole, PodSpec
from pool.passes.running import Pass, Run
from pool.store import rollouts
from pool.store.observed_counts import placeholders_of

# Placeholders of an old shape are replaced in steps, so that a change does not take all headroom away
# at once.
REPLACED_PER_RUN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomPlan:
    """What a run does for one profile."""

    delete: Sequence[Pod]
    create: int


def run(run: Run) -> None:
    """Delete placeholders that are dead, old or too many, then create missing ones."""
    settings = run.deps.settings
    found = _placeholders(run)
    others = _in_use_elsewhere(run)
    gone = found.keys() - settings.profiles.keys() - others
    surplus = [pod for name in sorted(gone) for pod in found[name]]
    missing: dict[str, int] = {}
    for name, profile in settings.profiles.items():
        if name in others:
            continue
        pods, revision = found.get(name, []), _revision(run, profile)
        plan = planned(profile.headroom, pods, revision)
        surplus += plan.delete
        missing[name] = plan.create
        run.record_count(placeholders_of(name), sum(_stands(p) and _is_present(p, revision) for p in pods))
    for pod in run.bounded(run.in_turn("placeholder_deleted", surplus, lambda p: p.name)):
        run.step(
            "placeholder_deleted", pod.name, partial(run.deps.driver.delete, pod.name, pod.uid, grace_s=0)
        )
    _create(run, missing)


def _in_use_elsewhere(run: Run) -> set[str]:
    """Return the profiles of which a process with another configuration has the wanted build."""
    with run.deps.store.read() as tx:
        return set(rollouts.used_by_others(tx, run.deps.revisions))


def planned(wanted: int, pods: Sequence[Pod], revision: str) -> HeadroomPlan:
    """Return what to delete and how many to create. Youngest pods first: the oldest are surplus.

    An old placeholder that is not replaced yet keeps its room until a later run.
    """
    alive = [p for p in pods if p.phase is not PodPhase.ENDED]
    kept = [p for p in alive if _is_present(p, revision)][:wanted]
    old = [p for p in alive if not _is_present(p, revision)]
    waiting = old[: min(max(0, len(old) - REPLACED_PER_RUN), wanted - len(kept))]
    stay = {p.name for p in (*kept, *waiting)}
    return HeadroomPlan(delete=[p for p in pods if p.name not in stay], create=wanted - len(stay))


def _placeholders(run: Run) -> Mapping[str, list[Pod]]:
    """Return the placeholders of each profile that are not being deleted, youngest first."""
    listing = run.cluster()
    found: dict[str, list[Pod]] = {}
    for pod in listing.named().values():
        if pod.role == PodRole.PLACEHOLDER and not pod.terminating:
            found.setdefault(pod.profile, []).append(listing.aged(pod))
    return {name: sorted(pods, key=lambda p: (p.age_s, p.name)) for name, pods in found.items()}


def _is_present(pod: Pod, revision: str) -> bool:
    return pod.annotations.get(NOTE_REVISION) == revision


def _stands(pod: Pod) -> bool:
    """Return whether it holds room on a node now."""
    return pod.phase is PodPhase.RUNNING and not pod.leaving


def _create(run: Run, missing: Mapping[str, int]) -> None:
    left = run.limit
    for name, count in missing.items():
        profile = run.deps.settings.profiles[name]
        for _ in range(min(left, count)):
            left -= 1
            make = partial(_make, run, profile)
            # All placeholders of a profile are the same: if one is refused, the next is refused, too.
            if not run.step("placeholder_made", name, make):
                break


def _make(run: Run, profile: Profile) -> None:
    size = PlaceholderSize.of(profile)
    spec = PodSpec(
        name=f"placeholder-{run.deps.ids.worker()}"[:63],
        profile=profile.name,
        revision=_revision(run, profile),
        image=profile.image,
        cpu_millicores=size.cpu_millicores,
        memory_mib=size.memory_mib,
        port=profile.port,
        grace_s=0,
        role=PodRole.PLACEHOLDER,
    )
    run.deps.driver.create(spec)


def _revision(run: Run, profile: Profile) -> str:
    return placeholder_revision(profile, run.deps.settings.kubernetes)


RECONCILE_HEADROOM = Pass(name="reconcile_headroom", run=run)
