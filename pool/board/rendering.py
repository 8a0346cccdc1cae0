"""Templates, and the panels that a page is made of: the same HTML whether it comes with the page or as an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pool.board.drawing import areas
from pool.board.feed import Seen
from pool.board.fleet import STATES
from pool.reporting.history import MINUTES
from pool.reporting.stories import duration
from pool.states import LIVE, TERMINAL

HERE = Path(__file__).parent
PANELS = ("worries", "numbers", "legend", "hour", "waiting", "orgs", "passes", "moves", "idling")

# What a state means, where the picture is explained.
MEANINGS = {
    "spawning": "slot made, pod on its way",
    "idle": "warm, for anybody",
    "reserved": "claimed, not yet activating",
    "activating": "taking on its org's configuration",
    "hot": "in use",
    "hot_idle": "parked for its org",
    "draining": "leaving, unclaimed",
    "retired": "ended on purpose",
    "lost": "ended, not on purpose",
}

# The three that a newcomer looks for, in a word.
PLAINLY = {"idle": "warm", "hot": "in use", "hot_idle": "parked"}


def amount(number: float) -> str:
    """A number as people write it: 10,000 and 2.5."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


class Templates:
    """Everything is escaped; a name that is not given is an error, not an empty place."""

    def __init__(self, *, links: Links) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters["duration"] = duration
        self._environment.filters["amount"] = amount
        self._environment.globals.update(
            links=links, states=STATES, live=[s for s in STATES if s in LIVE], ended=sorted(TERMINAL), meanings=MEANINGS,
            plainly=PLAINLY,
        )  # fmt: skip

    def page(self, template: str, /, **given: Any) -> str:
        return self._environment.get_template(f"{template}.html").render(**given)

    def panels(self, seen: Seen) -> dict[str, str]:
        """Every panel as HTML."""
        given = {
            "status": seen.status,
            "moves": seen.moves,
            "deeds": seen.deeds,
            "idle_cost": seen.idle_cost,
            "chart": areas(seen.hour, minutes=MINUTES),
            "totals": _totals(seen.status),
        }
        return {name: self.page(f"panels/{name}", **given) for name in PANELS}


class Links:
    """Where a page may point outside of the board: Flower, and a console for pods, if somebody has said where."""

    def __init__(self, *, flower_url: str = "", pod_url: str = "") -> None:
        self._flower_url, self._pod_url = flower_url.rstrip("/"), pod_url

    def task(self, task_id: str) -> str:
        return f"{self._flower_url}/task/{task_id}" if self._flower_url else ""

    def flower(self) -> str:
        return f"{self._flower_url}/" if self._flower_url else ""

    def pod(self, name: str, node: str | None) -> str:
        return self._pod_url.replace("{pod}", name).replace("{node}", node or "") if self._pod_url else ""


def _totals(status: dict[str, Any]) -> dict[str, int]:
    """Live workers by state, all profiles together."""
    return {
        state: sum(p["states"][state] for p in status["profiles"].values())
        for state in STATES
        if state in LIVE
    }
