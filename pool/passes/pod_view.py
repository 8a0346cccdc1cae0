"""The pods that a run of a pass sees, by what may be done with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pool.core.ids import WorkerId
from pool.drivers.port import PodPhase
from pool.passes.running import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """Names of pods by what the driver reports about them."""

    usable: frozenset[str]
    going: frozenset[str]
    unschedulable: frozenset[str]

    @classmethod
    def seen_by(cls, run: Run) -> PodView:
        pods = run.cluster().named().values()
        return cls(
            usable=frozenset(p.name for p in pods if p.usable),
            going=frozenset(p.name for p in pods if p.terminating or p.leaving or p.phase is PodPhase.ENDED),
            unschedulable=frozenset(p.name for p in pods if p.unschedulable),
        )

    def standing(self, idle: Iterable[WorkerId], just_ready: Collection[WorkerId]) -> set[WorkerId]:
        """Return the idle workers whose pod is usable.

        Of a worker that became ready a moment ago, another process has seen the pod; this view may be
        older.
        """
        return {i for i in idle if i in self.usable or (i in just_ready and i not in self.going)}
