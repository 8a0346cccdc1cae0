"""Templates and panels. A panel has the same HTML in the page and in an update."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pool.core.states import LIVE, TERMINAL
from pool.ops.board.drawing import areas
from pool.ops.board.feed import FeedState
from pool.ops.board.fleet import STATES
from pool.ops.reporting.history import MINUTES
from pool.ops.reporting.stories import duration

HERE = Path(__file__).parent
PANELS = ("worries", "numbers", "legend", "hour", "waiting", "orgs", "passes", "moves", "idling")

# Descriptions of the states, shown in the legend.
MEANINGS = {
    "spawning": "slot created, pod not ready yet",
    "idle": "warm and unclaimed, for any org",
    "reserved": "claimed, activation not started",
    "activating": "claimed, being activated for its org",
    "hot": "in use",
    "hot_idle": "parked for its org",
    "draining": "unclaimed, its pod is being deleted",
    "retired": "ended on purpose",
    "lost": "ended unexpectedly",
}

# Short names of the three most important states.
PLAINLY = {"idle": "warm", "hot": "in use", "hot_idle": "parked"}


def amount(number: float) -> str:
    """Return a number as text, like 10,000 and 2.5."""
    return f"{number:,.2f}".rstrip("0").rstrip(".")


class Templates:
    """The templates. Values are escaped, and an undefined name is an error."""

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
            links=links, states=STATES, live=[s for s in STATES if s in LIVE], ended=sorted(TERMINAL),
            meanings=MEANINGS, plainly=PLAINLY,
        )  # fmt: skip

    def page(self, template: str, /, **given: Any) -> str:
        return self._environment.get_template(f"{template}.html").render(**given)

    def panels(self, seen: FeedState) -> dict[str, str]:
        """Return every panel as HTML."""
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
    """Links out of the board: to Flower and to a console for pods, if their URLs are configured."""

    def __init__(self, *, flower_url: str = "", pod_url: str = "") -> None:
        self._flower_url, self._pod_url = flower_url.rstrip("/"), pod_url

    def task(self, task_id: str) -> str:
        return f"{self._flower_url}/task/{task_id}" if self._flower_url else ""

    def flower(self) -> str:
        return f"{self._flower_url}/" if self._flower_url else ""

    def pod(self, name: str, node: str | None) -> str:
        return self._pod_url.replace("{pod}", name).replace("{node}", node or "") if self._pod_url else ""


def _totals(status: dict[str, Any]) -> dict[str, int]:
    """Return the number of live workers by state, over all profiles."""
    return {
        state: sum(p["states"][state] for p in status["profiles"].values())
        for state in STATES
        if state in LIVE
    }
