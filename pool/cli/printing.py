"""How commands print: tables for people, JSON and YAML for programs. Colour only on a terminal, and not if NO_COLOR is set."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs; the same as -o json.")]


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        return self in {Output.JSON, Output.YAML}


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="How to print it; wide shows more columns.")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second, until Ctrl-C.")]

# What a word means, as a colour of the terminal. States, outcomes and levels share one scale.
STYLES = {
    "idle": "green", "hot": "blue", "hot_idle": "cyan", "spawning": "yellow", "reserved": "magenta",
    "activating": "magenta", "draining": "bright_black", "retired": "bright_black", "lost": "red",
    "ok": "green", "dark": "bold red", "failed": "red", "paused": "yellow", "bad": "bold red", "warn": "yellow",
    "granted": "green", "refused": "red", "waiting": "yellow", "binding": "magenta",
}  # fmt: skip


def chosen(output: Output, *, json: bool) -> Output:
    """`--json` is the short way to say `-o json`."""
    return Output.JSON if json else output


def as_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def emit(value: Any, output: Output, text: Callable[[], str]) -> None:
    """One value as asked for; people get the text."""
    if output is Output.JSON:
        as_json(value)
    elif output is Output.YAML:
        import yaml

        print(
            yaml.safe_dump(json.loads(json.dumps(value, default=str)), sort_keys=False, allow_unicode=True),
            end="",
        )
    else:
        show(text())


def show(text: str) -> None:
    """Text for people: known words are painted where there is somebody to see it."""
    print(painted(text) if colourful() else text, flush=True)


def colourful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str) -> str:
    """The same text with its words of state in colour."""
    import io

    from rich.console import Console
    from rich.highlighter import RegexHighlighter
    from rich.text import Text
    from rich.theme import Theme

    class Words(RegexHighlighter):
        base_style = "wp."
        highlights = [  # noqa: RUF012
            *(rf"(?:^|(?<=\s))(?P<{word}>{word}|{word.upper()})(?=\s|$)" for word in STYLES),
            r"(?P<bad>(?m:^)!! .*)",
            r"(?P<warn>(?m:^)! .*)",
            r"(?P<head>(?m:^)[A-Z][A-Z _]+(?:  +[A-Z%_ ]+)+(?m:$))",
        ]

    theme = Theme({**{f"wp.{w}": s for w, s in STYLES.items()}, "wp.head": "bold"})
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, theme=theme, width=10_000, color_system="standard")
    console.print(Words()(Text(text)), end="")
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as what is in them."""
    texts = [[("" if v is None else str(v)) for v in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return "\n".join(
        "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def again(what: Callable[[], Any], *, watch: bool) -> Any:
    """Once, or every second until Ctrl-C; on a terminal each time in the same place."""
    from pool.clock import SystemClock

    clock, never = SystemClock(), threading.Event()
    while True:
        if watch and sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        seen = what()
        sys.stdout.flush()
        if not watch:
            return seen
        clock.wait(never, 1.0)


def ago(seconds: float | None) -> str:
    """An age as a column shows it."""
    if seconds is None:
        return "-"
    from pool.reporting.stories import duration

    return duration(max(0.0, seconds))
