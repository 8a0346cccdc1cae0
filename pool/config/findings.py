"""What was given, where it stands, and what was found about it. Pure."""

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
    """A parsed file that knows where everything stands in it."""

    file: str
    data: Mapping[str, Any]
    lines: Mapping[Path, int]

    def where(self, path: Path) -> str:
        """File and line of a key."""
        return f"{self.file}:{nearest(self.lines, path)}"

    def given(self, *path: str, value: object) -> Given:
        """A value of this file."""
        return Given(doc=self, path=path, name=dotted(path), value=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A value as somebody wrote it: in a file, or (without one) in the environment."""

    doc: Document | None = None
    path: Path = ()
    name: str
    value: object

    def where(self, below: Path = ()) -> str:
        """Where it stands, or a part of it."""
        return self.doc.where(self.path + below) if self.doc else ENVIRONMENT


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    problems: list[str] = field(default_factory=list)

    def add(self, where: str, sentence: str) -> None:
        self.problems.append(f"{where}: {sentence}")

    def wrong(self, given: Given, wrongs: Iterable[Wrong], *, secret: bool = False) -> None:
        """What does not fit about a value, one finding each."""
        for wrong in wrongs:
            name = ".".join(filter(None, (given.name, dotted(wrong.path))))
            value = "(not shown)" if secret else shown(wrong.given)
            self.add(given.where(wrong.path), f"{name} {wrong.verb} {value}; it takes {wrong.takes}")
