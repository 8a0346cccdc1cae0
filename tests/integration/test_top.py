"""`warmpool top`: sorting, filtering, details."""

from __future__ import annotations

import asyncio
from typing import Any

from textual.widgets import DataTable, Static

from pool.core.states import LIVE
from pool.ops.cli.fleetview import Top, matching, ordered


def row(name: str, state: str, age_s: float, org: str | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "profile": "default",
        "state": state,
        "org": org,
        "in_state_s": age_s,
        "age_s": age_s,
        "node": "n1",
    }


ROWS = [row("w-a", "idle", 30.0), row("w-b", "hot", 10.0, "acme"), row("w-c", "hot_idle", 20.0, "bolt")]
STATUS: dict[str, Any] = {
    "pool": {"live": 3},
    "profiles": {
        "default": {"states": dict.fromkeys(sorted(LIVE), 0) | {"idle": 1, "hot": 1, "hot_idle": 1}}
    },
    "waiting": [],
    "worries": [{"level": "bad", "text": "beat is dark"}],
}


def test_rows_match_by_words_and_empty_values_sort_last() -> None:
    assert [r["id"] for r in matching(ROWS, "hot ACME")] == ["w-b"]
    assert [r["id"] for r in ordered(ROWS, "org", backwards=True)] == ["w-c", "w-b", "w-a"]


def test_top_shows_sorts_and_filters_workers_and_explains_one() -> None:
    asked: list[str] = []

    def explain(name: str) -> str:
        asked.append(name)
        return f"the story of {name}"

    app = Top(lambda: (STATUS, ROWS), explain, every_s=3600)

    async def drive() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            table = app.query_one(DataTable)

            async def shows(*names: str) -> None:
                async with asyncio.timeout(60):
                    while [r["id"] for r in app.shown] != list(names):
                        await pilot.pause(0.01)
                assert table.row_count == len(names)

            await shows("w-b", "w-c", "w-a")
            head = str(app.query_one("#head", Static).render())
            assert "3 live" in head
            assert "!! beat is dark" in head
            await pilot.press("r")
            await shows("w-a", "w-c", "w-b")
            await pilot.press("slash", "b", "o", "l", "t", "enter")
            await shows("w-c")
            await pilot.press("enter")
            async with asyncio.timeout(60):
                while len(app.screen_stack) < 2:
                    await pilot.pause(0.01)
            assert asked == ["w-c"]
            await pilot.press("escape")
            await pilot.press("escape")
            await shows("w-a", "w-c", "w-b")

    asyncio.run(drive())
