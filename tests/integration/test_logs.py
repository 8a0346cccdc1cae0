"""How exceptions are logged: an outage in one line, a bug with its traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pool.config import logs

# In a separate process, because logging is configured per process.
PROGRAM = """
import logging
from pool.config import logs
from pool.core.errors import Transient

def fails():
    raise {trouble}

logs.set_up()
try:
    fails()
except Exception as exc:
    logging.getLogger("library").error("task failed: %s", exc, exc_info=True)
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
def test_an_outage_is_logged_in_one_line(log: str) -> None:
    for trouble in ("Transient('database: gone')", "ConnectionError('refused')"):
        [line] = _said(trouble, log)
        assert "task failed" in line
        assert "raceback" not in line


def test_a_bug_is_logged_with_its_traceback() -> None:
    assert "in fails" in "\n".join(_said("LookupError('what is this')", ""))
    [line] = _said("LookupError('what is this')", "json")
    assert "in fails" in line


def test_log_line_that_cannot_be_written_raises_nothing() -> None:
    program = "import structlog\nfrom pool.config import logs\nlogs.set_up()\nstructlog.get_logger().info('x')\nprint('went on')"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert done.stdout == "went on\n"


def test_value_of_a_log_line_is_quoted_if_it_is_ambiguous() -> None:
    said = {"timestamp": "T", "level": "info", "event": "worker_moved", "to": "hot", "n": 3, "why": "a\nb=c"}
    assert logs.as_text(None, "", said).split() == [
        "T",
        "[info",
        "]",
        "worker_moved",
        "n=3",
        "to=hot",
        "why='a\\nb=c'",
    ]
