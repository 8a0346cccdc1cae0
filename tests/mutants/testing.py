"""Run tests in a copy of the code."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1
_LONGEST_S = 900
# Time for pytest to end its servers after an interrupt.
_ENDING_S = 60
_NOT_COPIED = shutil.ignore_patterns(
    *(".git", ".venv", ".warmpool", "build", "dist", "__pycache__"),
    *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of pytest. Failed: tests whose own assertions did not hold; a failed setup proves
    nothing about the code.
    """

    code: int
    failed: int
    took_s: float
    output: str

    @property
    def tail(self) -> str:
        return "\n".join(self.output.splitlines()[-25:])


def copy_code(folder: Path) -> None:
    """Copy the code and its tests to a new folder."""
    shutil.copytree(ROOT, folder, symlinks=True, ignore=_NOT_COPIED)


def run_tests(
    folder: Path,
    tests: Sequence[str],
    *options: str,
) -> Result:
    """All processes of the tests import the copy: the folder comes before installed packages.
    Processes that are left after a timeout are ended with the tests.
    """
    began = time.monotonic()
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *tests]
        process = subprocess.Popen(
            [*command, f"--junitxml={report.name}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output = _output_of(process)
        text = Path(report.name).read_text()
    failed = len(ET.fromstring(text).findall(".//testcase/failure")) if text else 0
    return Result(code=process.returncode, failed=failed, took_s=time.monotonic() - began, output=output)


def _output_of(process: subprocess.Popen[str]) -> str:
    """Interrupted, pytest ends what its tests have started; if it does not end, it is killed."""
    for limit_s, sig in ((_LONGEST_S, signal.SIGINT), (_ENDING_S, signal.SIGKILL)):
        try:
            return process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, sig)
    return process.communicate()[0]
