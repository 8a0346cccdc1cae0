"""Write the results of a run into the docs: the tables of `performance.md` between their marks, a
picture per bench, and all figures as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path

from bench.measuring import QUANTILES, BenchReport
from bench.plotting import plot

PAGE, FIGURES, PICTURES = "performance.md", "performance.json", "img"


def write(reports: Sequence[BenchReport], folder: Path) -> None:
    """Replace only what was measured."""
    page = folder / PAGE
    text = page.read_text()
    known = json.loads((folder / FIGURES).read_text()) if (folder / FIGURES).exists() else {}
    for report in reports:
        text = replaced(text, report.bench, "\n".join(tables(report)))
        known[report.bench] = {**report.as_dict(), "machine": machine()}
        plot(report, folder / PICTURES / f"{report.bench}.png")
    page.write_text(text)
    (folder / FIGURES).write_text(json.dumps(known, indent=2) + "\n")


def replaced(text: str, bench: str, tables: str) -> str:
    """Return the page with this bench's tables between its marks; a page without such marks is an
    error.
    """
    begin, end = f"<!-- measured: {bench} -->", f"<!-- end: {bench} -->"
    found, count = re.subn(
        f"{begin}.*?{end}", lambda _: f"{begin}\n{tables}\n{end}", text, count=1, flags=re.DOTALL
    )
    if not count:
        raise ValueError(f"{PAGE} has no marks for {bench}: {begin} … {end}")
    return found


def tables(report: BenchReport) -> list[str]:
    """Return ratios with their goals, then times for scale."""
    heads = " | ".join(f"p{q}" for q in QUANTILES)
    rule = "|---" * (len(QUANTILES) + 2) + "|"
    found = [machine(), "", f"| ratio, over the rounds | {heads} | goal |", rule]
    for figure in report.figures:
        cells = " | ".join(f"{ratio:.2f}" for ratio in figure.quantiles().values())
        found.append(f"| {figure.name} | {cells} | {figure.verdict} |")
    found += ["", "For scale, ms a call:", "", f"| subject | {heads} |", "|---" * (len(QUANTILES) + 1) + "|"]
    for name in report.measured.rounds:
        cells = " | ".join(f"{s * 1000:.2f}" for s in report.measured.quantiles(name).values())
        found.append(f"| {name} | {cells} |")
    return found


def machine() -> str:
    """Return the machine and its load: a figure taken beside other work is less reliable."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end of the run, Python {platform.python_version()}."
