"""How commands print: JSON for programs, plain aligned text for people, colour only on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def as_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as what is in them."""
    texts = [[("" if v is None else str(v)) for v in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return "\n".join(
        "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )
