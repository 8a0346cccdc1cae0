"""Configuration values with their position in the file, and the problems found in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.config.kinds import Wrong
from pool.config.lines import Path, nearest
from pool.config.wording import dotted, shown

ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file with the line of each key."""

    file: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int]

    def where(self, path: Path) -> str:
        """Return the file and line of a key."""
        return f"{self.file}:{nearest(self.lines, path)}"

    def given(self, *path: str, value: object) -> Given:
        """Return a value of this file with its position."""
        return Given(doc=self, path=path, name=dotted(path), value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value as it was written in a file or, if `doc` is None, in the environment."""

    doc: Document | None = None
    path: Path = ()
    name: str
    value: object

    def where(self, below: Path = ()) -> str:
        """Return the position of the value, or of a part of it."""
        return self.doc.where(self.path + below) if self.doc else ENVIRONMENT


@dataclass(slots=True)
class Findings:
    """The problems found so far."""

    problems: list[str] = field(default_factory=list)

    def add(self, where: str, sentence: str) -> None:
        self.problems.append(f"{where}: {sentence}")

    def wrong(self, given: Given, wrongs: Iterable[Wrong], *, secret: bool = False) -> None:
        """Add one finding for each invalid part of a value."""
        for wrong in wrongs:
            name = ".".join(filter(None, (given.name, dotted(wrong.path))))
            value = "(not shown)" if secret else shown(wrong.given)
            self.add(given.where(wrong.path), f"{name} {wrong.verb} {value}; it must be {wrong.takes}")
