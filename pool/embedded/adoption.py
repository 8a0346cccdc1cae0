"""What becomes of components that a killed supervisor has left running. Pure.

A component is taken over if it runs what would be started now: the same settings, code and arguments. Anything else is
ended before its successor starts, and so is whatever runs without being in the record. A one-shot is never taken over,
because only its parent learns how it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pool.embedded.components import Component, Kind
from pool.embedded.datadir import Recorded
from pool.processes import ProcessRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Which running processes to take over, by component, and which to end first, with their names."""

    adopt: Mapping[str, ProcessRef]
    end: Mapping[ProcessRef, str]


def judge(
    components: Iterable[Component], recorded: Mapping[str, Recorded], running: Mapping[ProcessRef, str]
) -> Leftovers:
    """`recorded` holds only what is still alive; `running` is every process that writes to a log of ours."""
    wanted = {c.name: c.fingerprint for c in components if c.kind is Kind.SERVICE}
    adopt = {name: entry.ref for name, entry in recorded.items() if wanted.get(name) == entry.fingerprint}
    known = {entry.ref: name for name, entry in recorded.items()} | dict(running)
    kept = set(adopt.values())
    return Leftovers(adopt=adopt, end={ref: name for ref, name in known.items() if ref not in kept})
