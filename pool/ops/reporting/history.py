"""Workers by state for each of the last 60 minutes, computed backwards: the current counts minus the moves in
the journal."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pool.core.settings import Profile
from pool.core.states import CLAIMED, LIVE
from pool.store import Tx, now, operator_queries, workers
from pool.store.operator_queries import Moves

MINUTES = 60
# A pool with more moves per hour than this shows less than an hour at first.
ENTRIES_READ = 200_000
# Workers by profile and state at one moment.
Sample = Counter[tuple[str, str]]


def rewind(present: Mapping[tuple[str, str], int], moves: Iterable[Moves], *, minutes: int) -> list[Sample]:
    """Return one sample per minute, oldest first; the last one is now."""
    by_minute: dict[int, list[Moves]] = {}
    for move in moves:
        by_minute.setdefault(move.minutes_ago, []).append(move)
    at: Sample = Counter(present)
    samples = [Counter(at)]
    for minute in range(minutes):
        for move in by_minute.get(minute, ()):
            at[move.profile, move.to] -= move.count
            if move.frm is not None:
                at[move.profile, move.frm] += move.count
        samples.append(Counter({k: n for k, n in at.items() if n > 0 and k[1] in LIVE}))
    return samples[::-1]


@dataclass(slots=True)
class Hour:
    """The last hour: read once from the journal, then one sample added per minute."""

    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MINUTES + 1))
    minute: int = 0

    @classmethod
    def read(cls, tx: Tx) -> Hour:
        """Read the last hour from the journal; at most `ENTRIES_READ` entries."""
        present = {(str(p), str(s)): n for (p, s), n in workers.counts(tx).items()}
        moves = operator_queries.moves_by_minute(tx, minutes=MINUTES, newest=ENTRIES_READ)
        known = MINUTES
        if sum(m.count for m in moves) >= ENTRIES_READ:
            known = max(m.minutes_ago for m in moves)
        return cls(deque(rewind(present, moves, minutes=known), maxlen=MINUTES + 1), _minute(now(tx)))

    def see(self, at: datetime, present: Mapping[tuple[str, str], int]) -> None:
        """Add the current counts."""
        missed = min(max(0, _minute(at) - self.minute), MINUTES)
        self.minute = max(self.minute, _minute(at))
        for _ in range(missed):
            self.samples.append(Counter(self.samples[-1] if self.samples else {}))
        if self.samples:
            self.samples[-1] = Counter(present)
        else:
            self.samples.append(Counter(present))

    def by_state(self) -> list[dict[str, int]]:
        """Return the counts by state for each minute, oldest first."""
        minutes = []
        for sample in self.samples:
            states: Counter[str] = Counter()
            for (_, state), n in sample.items():
                states[state] += n
            minutes.append({str(s): states[s] for s in sorted(LIVE)})
        return minutes

    def idle_cost(self, profiles: Mapping[str, Profile]) -> dict[str, Any]:
        """Return the vCPU-hours and GiB-hours of workers without a claim in the samples, by state."""
        vcpu, gib = Counter[str](), Counter[str]()
        for sample in list(self.samples)[1:]:
            for (name, state), n in sample.items():
                shape = profiles.get(name)
                if shape is None or state in CLAIMED:
                    continue
                vcpu[state] += n * shape.cpu_millicores  # millicore-minutes
                gib[state] += n * shape.memory_mib
        return {
            "minutes": max(0, len(self.samples) - 1),
            "vcpu_h": {s: round(v / 60_000, 3) for s, v in sorted(vcpu.items())},
            "memory_gib_h": {s: round(v / 61_440, 3) for s, v in sorted(gib.items())},
        }


def _minute(at: datetime) -> int:
    return int(at.timestamp() // 60)
