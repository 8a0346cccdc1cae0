"""Output of commands: tables for people, JSON and YAML for programs. Colour on a terminal only, unless
NO_COLOR is set."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Output(StrEnum):
    """Output formats."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_data(self) -> bool:
        return self in {Output.JSON, Output.YAML}


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Output format; wide shows more columns.")
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every second until Ctrl-C.")]

# Colours of the words for states, outcomes and levels.
STYLES = {
    "idle": "green", "hot": "blue", "hot_idle": "cyan", "spawning": "yellow", "reserved": "magenta",
    "activating": "magenta", "draining": "bright_black", "retired": "bright_black", "lost": "red",
    "ok": "green", "dark": "bold red", "failed": "red", "paused": "yellow", "bad": "bold red",
    "warn": "yellow", "granted": "green", "refused": "red", "waiting": "yellow", "binding": "magenta",
}  # fmt: skip


def chosen(output: Output, *, json: bool) -> Output:
    """Return the output format; `--json` means `-o json`."""
    return Output.JSON if json else output


def as_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))


def emit(value: Any, output: Output, text: Callable[[], str]) -> None:
    """Print a value in the chosen format; the table formats print `text()`."""
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
    """Print text, with states and levels in colour if the output is a terminal."""
    print(painted(text) if colourful() else text, flush=True)


def colourful() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str) -> str:
    """Return the text with states and levels in colour."""
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
    """Return rows as text in aligned columns."""
    texts = [[("" if v is None else str(v)) for v in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in texts) for i in range(len(header))]
    return "\n".join(
        "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )


def again(what: Callable[[], Any], *, watch: bool) -> Any:
    """Call `what` once, or every second until Ctrl-C; a terminal is cleared before each call."""
    from pool.core.clock import SystemClock

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
    """Return an age for a table column; `-` if there is none."""
    if seconds is None:
        return "-"
    from pool.ops.reporting.stories import duration

    return duration(max(0.0, seconds))
