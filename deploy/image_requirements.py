"""Print the part of requirements.lock that the image needs, with hashes: the dependencies of the
server, the Kubernetes driver, the board and Flower, without development tools. Uses the "via"
comments of the lock. Needs only Python.

    python deploy/image_requirements.py > image.lock
    python deploy/image_requirements.py hatchling > build.lock    # only these and what they need
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRAS = ("kubernetes", "board")
BESIDE = ("flower",)
# Built from this tree, as the server is.
CLIENT = "warmpool"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """One package of the lock: its lines, and the packages that require it."""

    name: str
    text: str
    wanted_by: frozenset[str]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = set(sys.argv[1:]) or roots(project)
    for found in needed(packages((ROOT / "requirements.lock").read_text()), asked):
        sys.stdout.write(found.text)


def roots(project: dict[str, Any]) -> set[str]:
    """Return the packages that the image requires directly."""
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]
    return {name(line) for line in asked} - {CLIENT} | set(BESIDE)


def name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", _NAME.findall(requirement)[0]).lower()


def packages(lock: str) -> list[Locked]:
    return [
        _locked(block) for block in re.split(r"(?m)^(?=[A-Za-z0-9])", lock) if "==" in block.split("\n", 1)[0]
    ]


def needed(locked: Iterable[Locked], asked: set[str]) -> Iterator[Locked]:
    """Yield the requested packages and all their dependencies."""
    everything, known = list(locked), set(asked)
    while grown := {p.name for p in everything if p.wanted_by & known} - known:
        known |= grown
    yield from (p for p in everything if p.name in known)


def _locked(block: str) -> Locked:
    notes = [
        line.strip().removeprefix("#").strip() for line in block.splitlines() if line.strip().startswith("#")
    ]
    wanted = frozenset(
        name(note.removeprefix("via").strip()) for note in notes if note.removeprefix("via").strip()
    )
    return Locked(name=name(block), text=block, wanted_by=wanted)


if __name__ == "__main__":
    main()
