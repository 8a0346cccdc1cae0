"""Every reason of a move is a valid label, has a line in the runbook, and has a text that keeps its
detail unchanged.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pool.core.states import MoveReason
from pool.ops.reporting.stories import because

RUNBOOK = Path(__file__).resolve().parents[2] / "docs" / "runbook.md"


def test_reason_is_a_valid_label() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", reason) for reason in MoveReason)


def test_runbook_explains_every_reason() -> None:
    section = RUNBOOK.read_text().partition("## Reading `warmpool events`")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(MoveReason)


@pytest.mark.parametrize("reason", MoveReason, ids=str)
def test_reason_has_words_and_keeps_its_detail_as_it_is(reason: MoveReason) -> None:
    assert because(reason, "") == because(reason, None) != ""
    assert because(reason, "drained: its node was evicted").endswith("drained: its node was evicted")
