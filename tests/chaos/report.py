"""The report of a chaos run."""

from __future__ import annotations

from collections import Counter

from tests.chaos.history import HistoryKind
from tests.chaos.running import ChaosVerdict
from tests.chaos.schedule import FaultKind

ANSWERS = (HistoryKind.GRANTED, HistoryKind.REFUSED, HistoryKind.UNANSWERED)
USES = (HistoryKind.USED, HistoryKind.UNREACHABLE, HistoryKind.LOST)


def page(verdict: ChaosVerdict) -> str:
    """Return one screen: faults, results of the clients, broken promises."""
    seen = Counter(event.what for events in verdict.clients for event in events)
    refused = Counter(e.about for events in verdict.clients for e in events if e.what is HistoryKind.REFUSED)
    faults = Counter(step.kind for step in verdict.steps)
    within = "never" if verdict.converged_s is None else f"{verdict.converged_s:.0f} s after the last fault"
    lines = [
        f"chaos  seed {verdict.seed}, {verdict.minutes:g} minutes, {verdict.pods} pods, {verdict.servers} servers",
        f"  faults         {len(verdict.steps)}: {_counts(faults)}",
        f"  ended alone    {_counts(verdict.ended_by_themselves)}",
        f"  requests       {seen[HistoryKind.ASKED]}: {_counts(Counter({what: seen[what] for what in ANSWERS}))}",
        f"  refused        {_counts(refused)}",
        f"  held           {len(verdict.holds)}: {_counts(Counter({what: seen[what] for what in USES}))}",
        f"  released       {seen[HistoryKind.RELEASED]} acknowledged, {seen[HistoryKind.UNRELEASED]} left to their lease",
        f"  journal        {verdict.moves} moves",
        f"  whole again    {within}",
        f"  violations     {len(verdict.violations)}",
        *(f"    {violation}" for violation in verdict.violations[:40]),
        f"  again with     make chaos SEED={verdict.seed} MINUTES={verdict.minutes:g}"
        + ("" if verdict.pods == "local" else f" PODS={verdict.pods}")
        + ("" if verdict.servers == "single" else f" SERVERS={verdict.servers}"),
    ]
    return "\n".join(lines)


def _counts(counted: Counter[FaultKind] | Counter[HistoryKind] | Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counted.most_common()) or "none"
