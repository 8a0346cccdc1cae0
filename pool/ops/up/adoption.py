"""Decides about components that still run after their supervisor was killed. Pure.

A component is taken over if it has the settings, code and arguments that would be started now. Any
other component is stopped before its successor starts, and so is one that is not in the record. A
one-shot is never taken over, because only its parent can read its exit code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pool.drivers.local.processref import ProcessRef
from pool.ops.up.components import Component, ComponentKind
from pool.ops.up.datadir import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Running processes to take over, by component, and processes to stop first, with their names."""

    adopt: Mapping[str, ProcessRef]
    end: Mapping[ProcessRef, str]


def judge(
    components: Iterable[Component], recorded: Mapping[str, Recorded], running: Mapping[ProcessRef, str]
) -> Leftovers:
    """Return what to take over and what to stop.

    `recorded` has only live processes; `running` has every process that writes to one of our logs.
    """
    wanted = {c.name: c.fingerprint for c in components if c.kind is ComponentKind.SERVICE}
    adopt = {name: entry.ref for name, entry in recorded.items() if wanted.get(name) == entry.fingerprint}
    known = {entry.ref: name for name, entry in recorded.items()} | dict(running)
    kept = set(adopt.values())
    return Leftovers(adopt=adopt, end={ref: name for ref, name in known.items() if ref not in kept})
