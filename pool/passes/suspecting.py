"""What a pass saw and must see again before it acts. A dry run looks at the suspicions that are there and adds none."""

from __future__ import annotations

from collections.abc import Mapping

from pool.passes.running import Run
from pool.store import suspects
from pool.store.suspects import SuspectKind, Suspicion


def seen_again(run: Run, kind: SuspectKind, now_seen: Mapping[str, str]) -> dict[str, Suspicion]:
    """How often each of these (subject: detail) has been seen in a row, this time included. Whatever was not seen now is forgotten."""
    if run.dry_run:
        with run.deps.store.read() as tx:
            return {s: suspects.peek(tx, kind, s) for s in now_seen}
    with run.deps.store.write() as tx:
        suspects.forget_others(tx, kind, now_seen)
        return {s: suspects.see(tx, kind, s, detail) for s, detail in now_seen.items()}
