"""What is logged of an exception: an outage in a line, a mistake with its stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own, since logging belongs to a whole process.
PROGRAM = """
import logging
from pool import logs
from pool.errors import Transient

def fails():
    raise {trouble}

logs.set_up()
try:
    fails()
except Exception as exc:
    logging.getLogger("somebody").error("task failed: %s", exc, exc_info=True)
"""


def _said(trouble: str, log: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM.format(trouble=trouble)],
        env={"WARMPOOL_RUN_LOG": log},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr.splitlines()


@pytest.mark.parametrize("log", ["", "json"])
def test_an_outage_is_one_line(log: str) -> None:
    for trouble in ("Transient('database: gone')", "ConnectionError('refused')"):
        [line] = _said(trouble, log)
        assert "task failed" in line
        assert "raceback" not in line


def test_a_mistake_has_its_stack() -> None:
    assert "in fails" in "\n".join(_said("LookupError('what is this')", ""))
    [line] = _said("LookupError('what is this')", "json")
    assert "in fails" in line
