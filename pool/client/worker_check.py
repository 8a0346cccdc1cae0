"""Check that a program follows the worker contract: every rule of `worker_rules`, one line for each.

A program that is started here also shows that it becomes ready and drains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pool.client.worker_rules import PROXY_HELPS, RULES, VITAL
from pool.client.worker_target import CheckedWorker, CheckOptions, RuleBroken, RuleSkipped, worker_under_check


class RuleResult(StrEnum):
    """How one rule of the contract was kept."""

    PASSED = "ok"
    FAILED = "FAIL"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """One line of the report."""

    rule: str
    result: RuleResult
    text: str

    def as_dict(self) -> dict[str, str]:
        return {"rule": self.rule, "result": str(self.result), "text": self.text}


def check(options: CheckOptions) -> list[RuleLine]:
    """Try every rule. The first one that makes the others pointless ends the run."""
    with worker_under_check(options) as target:
        lines = []
        for rule, attempt in RULES:
            lines.append(_tried(rule, attempt, target))
            if rule in VITAL and lines[-1].result is RuleResult.FAILED:
                break
        return lines


def kept(lines: Sequence[RuleLine]) -> bool:
    return all(line.result is not RuleResult.FAILED for line in lines)


def as_text(lines: Sequence[RuleLine]) -> str:
    """Return the report for people: one line per rule, then the sum."""
    width = max(len(line.rule) for line in lines)
    shown = [f"{line.result:4}  {line.rule:{width}}  {line.text}" for line in lines]
    failed = sum(line.result is RuleResult.FAILED for line in lines)
    tried = sum(line.result is not RuleResult.SKIPPED for line in lines)
    total = f"{failed} of {tried} rules failed" if failed else f"all {tried} rules passed"
    if any(line.rule in PROXY_HELPS and line.result is RuleResult.FAILED for line in lines):
        total += "\na program that cannot check tokens runs behind the proxy: warmpool worker-proxy -- CMD"
    return "\n".join([*shown, "", total, ""])


def _tried(rule: str, attempt: Callable[[CheckedWorker], str], target: CheckedWorker) -> RuleLine:
    try:
        return RuleLine(rule=rule, result=RuleResult.PASSED, text=attempt(target))
    except RuleBroken as exc:
        return RuleLine(rule=rule, result=RuleResult.FAILED, text=str(exc))
    except RuleSkipped as exc:
        return RuleLine(rule=rule, result=RuleResult.SKIPPED, text=str(exc))
