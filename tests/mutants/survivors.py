"""The changes that no test notices and that do not matter, each with its reason, from
`survivors.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.lines import Change

FILE = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """The file, its function (empty: any), the text of the line, the beginning of what the change
    does (empty: any change of the line), and why it does not matter.
    """

    file: str
    function: str = ""
    line: str
    what: str = ""
    reason: str

    def covers(self, change: Change) -> bool:
        return (
            (self.file, self.line) == (change.file, change.line)
            and self.function in {"", change.function}
            and change.what.startswith(self.what)
        )


def known() -> list[Survivor]:
    return [Survivor(**each) for each in tomllib.loads(FILE.read_text()).get("survivor", [])]
