"""The previous version of warmpool, from this repository's history: its tree, and its client's wheel.

Nothing is released yet, so the previous version is a commit that is named here. After a release it is
that release's tag.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.support.client_wheel import ROOT, build_wheel

PREVIOUS = "e1005f9b6ac4415c4c8fd4a68f585f2c48c1b2d1"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmpool"


def tree() -> Path:
    """Return a folder with the files of the previous version. Skip the test if the history does not
    have it, because it was cloned without.
    """
    place = _CACHE / f"previous-{PREVIOUS[:12]}"
    if not place.exists():
        _extract(place)
    return place


def client_wheel() -> Path:
    """Return the client's wheel of the previous version. Python imports from it without installing."""
    place = tree() / "dist"
    found = list(place.glob("*.whl"))
    if found:
        return found[0]
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        made = build_wheel(tree() / "clientdist", Path(folder))
        return made.rename(place / made.name)


def _extract(place: Path) -> None:
    if _git("cat-file", "-e", f"{PREVIOUS}^{{commit}}").returncode:
        missing = f"the history does not have {PREVIOUS[:12]}, the previous version"
        if os.environ.get("CI") and _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"false":
            pytest.fail(missing)
        pytest.skip(missing)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".previous-", dir=place.parent))
    try:
        archive = draft / "tree.tar"
        done = _git("archive", "-o", str(archive), PREVIOUS)
        assert done.returncode == 0, done.stderr
        with tarfile.open(archive) as files:
            files.extractall(draft / "tree", filter="data")
        (draft / "tree").rename(place)
    except OSError:
        if not place.exists():  # no other process was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True)
