"""Observations that a pass must make twice before it acts.

A dry run reads the stored suspicions and adds none.
"""

from __future__ import annotations

from collections.abc import Mapping

from pool.passes.running import Run
from pool.store import suspects
from pool.store.suspects import SuspectKind, Suspicion


def seen_again(run: Run, kind: SuspectKind, now_seen: Mapping[str, str]) -> dict[str, Suspicion]:
    """Return how often each subject (subject: detail) was observed in consecutive runs, including
    this one. Subjects that were not observed now are deleted.
    """
    if run.dry_run:
        with run.deps.store.read() as tx:
            return {s: suspects.peek(tx, kind, s) for s in now_seen}
    with run.deps.store.write() as tx:
        suspects.forget_others(tx, kind, now_seen)
        return {s: suspects.see(tx, kind, s, detail) for s, detail in now_seen.items()}
