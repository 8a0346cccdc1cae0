"""Put the packages of the image on their own path: links to what is installed here, without
development tools.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("pool", "tasks", "beat_schedule.py")
# What the Dockerfile removes from a package.
REMOVED = {"kubernetes": {"aio"}}


def image_lock() -> dict[str, str]:
    """Return the packages of the image and their versions."""
    printed = subprocess.run(
        [sys.executable, "deploy/image_requirements.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return dict(re.findall(r"(?m)^([a-z0-9-]+)==([^ ;\\\n]+)", printed))


def installed() -> dict[str, importlib.metadata.Distribution]:
    """Return the installed distributions, by normalized name."""
    return {
        re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower(): found
        for found in importlib.metadata.distributions()
    }


def link_image_packages(folder: Path) -> None:
    """Fill a folder with the image's packages and our own. Packages of other platforms are not
    installed here.
    """
    here = installed()
    for name in sorted(set(image_lock()) & set(here)):
        files = here[name].files or []
        tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
        for top in sorted(tops):
            found = Path(str(here[name].locate_file(top)))
            if top in REMOVED:
                (folder / top).mkdir()
                for inner in found.iterdir():
                    if inner.name not in REMOVED[top]:
                        _link(folder / top / inner.name, inner)
            else:
                _link(folder / top, found)
    for ours in OURS:
        _link(folder / ours, ROOT / ours)


def _link(link: Path, target: Path) -> None:
    """Link once; a second link to a folder shared by two packages would hide one of them."""
    if not link.exists():
        link.symlink_to(target)
    elif link.resolve() != target.resolve():
        raise RuntimeError(f"{link.name} comes from two places")


def run_with(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that finds the standard library and this folder, and no other
    packages.
    """
    path = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.dont_write_bytecode = True\n"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", path + code], cwd=folder, capture_output=True, text=True
    )
