"""Build client and server from this tree, with the build tool that is installed here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clientdist"


def build_wheel(project: Path, folder: Path) -> Path:
    """Build a wheel without a network, and return its path."""
    return _built(project, folder, "wheel", "*.whl")


def build_sdist(project: Path, folder: Path) -> Path:
    return _built(project, folder, "sdist", "*.tar.gz")


def _built(project: Path, folder: Path, target: str, pattern: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)],
        cwd=project, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = folder.glob(pattern)
    return made
