"""The figures of a random run by room, as the table in docs/promises.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.mutants.testing import ROOT

PAGE = ROOT / "docs" / "promises.md"
BEGIN = "<!-- written by make random-mutants -->"
END = "<!-- end -->"
_HEAD = "| room | seed | lines changed | noticed | not noticed, with a reason | without | noticed, % |\n|---|---|---|---|---|---|---|\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one room."""

    room: str
    seed: int
    tried: int
    survived: int
    unexplained: int

    @property
    def row(self) -> str:
        noticed = self.tried - self.survived
        share = f"{100 * noticed / self.tried:.0f}" if self.tried else "-"
        explained = self.survived - self.unexplained
        cells = (f"{self.room}/", self.seed, self.tried, noticed, explained, self.unexplained, share)
        return f"| {' | '.join(str(cell) for cell in cells)} |"

    @classmethod
    def of_row(cls, row: str) -> Self:
        room, seed, tried, noticed, _, unexplained, _ = (
            cell.strip() for cell in row.strip("| \n").split("|")
        )
        survived = int(tried) - int(noticed)
        return cls(
            room=room.rstrip("/"),
            seed=int(seed),
            tried=int(tried),
            survived=survived,
            unexplained=int(unexplained),
        )


def write(figures: Sequence[Figures], page: Path = PAGE) -> str:
    """Replace the rows of these rooms in the page; the rows of others stay. Return the table."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = [Figures.of_row(line) for line in old.splitlines() if line.startswith("| ") and "/ |" in line]
    merged = {each.room: each for each in rows} | {each.room: each for each in figures}
    table = _HEAD + "\n".join(each.row for each in merged.values())
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
    return table
