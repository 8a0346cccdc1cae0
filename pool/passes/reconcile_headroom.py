"""reconcile_headroom: a constant number of worker-sized placeholder pods, which real workers push aside. Nothing that workers do raises it; 0 deletes them."""

from __future__ import annotations

from functools import partial

from pool.core.profiles import revision
from pool.drivers.port import PodRole, PodSpec
from pool.passes.running import Pass, Run


def run(run: Run) -> None:
    """Make what is missing, delete what is too many."""
    wanted = run.deps.settings.pool.headroom
    listing = run.cluster()
    there = sorted(
        (
            listing.aged(p)
            for p in listing.named().values()
            if p.role == PodRole.PLACEHOLDER and not p.terminating
        ),
        key=lambda p: (p.age_s, p.name),
    )
    run.saw("placeholders", len(there))
    for pod in run.bounded(run.in_turn("placeholder_deleted", there[wanted:], lambda p: p.name)):
        run.step(
            "placeholder_deleted", pod.name, partial(run.deps.driver.delete, pod.name, pod.uid, grace_s=0)
        )
    for _ in range(min(run.limit, max(0, wanted - len(there)))):
        # They are all alike: what is refused to one is refused to the next.
        if not run.step("placeholder_made", "placeholder", lambda: run.deps.driver.create(_placeholder(run))):
            return


def _placeholder(run: Run) -> PodSpec:
    """The size of the largest profile, under a name of its own."""
    profile = max(run.deps.settings.profiles.values(), key=lambda p: (p.cpu_millicores, p.memory_mib, p.name))
    return PodSpec(
        name=f"placeholder-{run.deps.ids.worker()}"[:63],
        profile=profile.name,
        revision=revision(profile),
        image=profile.image,
        cpu_millicores=profile.cpu_millicores,
        memory_mib=profile.memory_mib,
        port=profile.port,
        grace_s=0,
        role=PodRole.PLACEHOLDER,
    )


RECONCILE_HEADROOM = Pass(name="reconcile_headroom", run=run)
