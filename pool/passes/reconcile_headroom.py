"""reconcile_headroom: keep a constant number of placeholder pods of worker size, which workers preempt.

Nothing that workers do raises the number; 0 deletes all.
"""

from __future__ import annotations

from functools import partial

from pool.core.profiles import revision
from pool.drivers.port import PodRole, PodSpec
from pool.passes.running import Pass, Run


def run(run: Run) -> None:
    """Create missing placeholders and delete surplus ones."""
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
    run.record_count("placeholders", len(there))
    for pod in run.bounded(run.in_turn("placeholder_deleted", there[wanted:], lambda p: p.name)):
        run.step(
            "placeholder_deleted", pod.name, partial(run.deps.driver.delete, pod.name, pod.uid, grace_s=0)
        )
    for _ in range(min(run.limit, max(0, wanted - len(there)))):
        # All placeholders are the same: if one is refused, the next is refused, too.
        if not run.step("placeholder_made", "placeholder", lambda: run.deps.driver.create(_placeholder(run))):
            return


def _placeholder(run: Run) -> PodSpec:
    """Return a placeholder with the size of the largest profile and a name of its own."""
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
