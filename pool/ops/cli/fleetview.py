"""The screen of `warmpool top`. It is a separate module because Textual is slow to import; no other command
needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from pool.core.errors import PoolError
from pool.ops.cli.printing import STYLES, ago

COLUMNS = ("id", "profile", "state", "org", "in_state_s", "age_s", "node")
Read = Callable[[], tuple[dict[str, Any], list[dict[str, Any]]]]
Explain = Callable[[str], str]


class WorkerStory(ModalScreen[None]):
    """A dialog with the explanation of one worker."""

    BINDINGS = [Binding("escape,q,enter", "dismiss", "Back")]  # noqa: RUF012
    CSS = (
        "Story { align: center middle; } #story { width: 92%; height: 88%; border: round "
        "$primary; padding: 1 2; background: $surface; }"
    )

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="story"):
            yield Static(self._text, markup=False)


class Top(App[None]):
    """The table of workers, its filter, and the problems of the pool above it."""

    TITLE = "warmpool"
    CSS = (
        "#head { height: auto; padding: 0 1; } #filter { display: none; } #filter.on { display: "
        "block; } DataTable { height: 1fr; }"
    )
    BINDINGS = [  # noqa: RUF012
        Binding("s", "sort", "Sort"),
        Binding("r", "turn", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "unfilter", "All", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, read: Read, explain: Explain, *, every_s: float) -> None:
        super().__init__()
        self._read, self._explain, self._every_s = read, explain, every_s
        self.rows: list[dict[str, Any]] = []
        self.shown: list[dict[str, Any]] = []
        self.status: dict[str, Any] = {}
        self.column, self.backwards, self.words = "in_state_s", False, ""

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Input(placeholder="show only rows that contain these words", id="filter")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).focus()
        self.look()
        self.set_interval(self._every_s, self.look)

    @work(thread=True, exclusive=True)
    def look(self) -> None:
        try:
            status, rows = self._read()
        except PoolError as exc:
            self.call_from_thread(self.query_one("#head", Static).update, f"not updated: {exc}")
            return
        self.call_from_thread(self.show, status, rows)

    def show(self, status: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        self.status, self.rows = status, rows
        self.draw()

    def draw(self) -> None:
        if not self.status:
            return
        table = self.query_one(DataTable)
        chosen = self.shown[table.cursor_row]["id"] if self.shown and table.row_count else None
        shown = ordered(matching(self.rows, self.words), self.column, backwards=self.backwards)
        table.clear(columns=True)
        table.add_columns(*(_title(c, self.column, backwards=self.backwards) for c in COLUMNS))
        for row in shown:
            table.add_row(
                *(
                    Text(_cell(row, c), style=STYLES.get(str(row[c]), "") if c == "state" else "")
                    for c in COLUMNS
                ),
                key=row["id"],
            )
        self.shown = shown
        at = next((i for i, r in enumerate(shown) if r["id"] == chosen), 0)
        table.move_cursor(row=at)
        self.query_one("#head", Static).update(_head(self.status, len(shown), len(self.rows)))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.explain(str(event.row_key.value))

    @work(thread=True)
    def explain(self, worker_id: str) -> None:
        try:
            text = self._explain(worker_id)
        except PoolError as exc:
            text = str(exc)
        self.call_from_thread(self.push_screen, WorkerStory(text))

    def on_input_changed(self, event: Input.Changed) -> None:
        self.words = event.value
        self.draw()

    def on_input_submitted(self) -> None:
        self.query_one(DataTable).focus()

    def action_sort(self) -> None:
        self.column = COLUMNS[(COLUMNS.index(self.column) + 1) % len(COLUMNS)]
        self.draw()

    def action_turn(self) -> None:
        self.backwards = not self.backwards
        self.draw()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("on")
        box.focus()

    def action_unfilter(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = ""
        box.remove_class("on")
        self.query_one(DataTable).focus()


def matching(rows: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return the rows that contain every word of the filter."""
    words = text.lower().split()
    return [r for r in rows if all(any(w in str(r[c] or "").lower() for c in COLUMNS) for w in words)]


def ordered(rows: list[dict[str, Any]], column: str, *, backwards: bool) -> list[dict[str, Any]]:
    """Return the rows sorted by one column; rows with an empty value come last."""
    known = [r for r in rows if r[column] is not None]
    return sorted(known, key=lambda r: r[column], reverse=backwards) + [r for r in rows if r[column] is None]


def _title(column: str, sorted_by: str, *, backwards: bool) -> str:
    mark = ("▼" if backwards else "▲") if column == sorted_by else ""
    return f"{column.removesuffix('_s').replace('_', ' ')} {mark}".strip()


def _cell(row: dict[str, Any], column: str) -> str:
    value = row[column]
    return ago(value) if column.endswith("_s") else str(value if value is not None else "-")


def _head(status: dict[str, Any], shown: int, known: int) -> str:
    totals: dict[str, int] = {}
    for p in status["profiles"].values():
        for state, n in p["states"].items():
            totals[state] = totals.get(state, 0) + n
    counts = "  ".join(f"{state} {n}" for state, n in totals.items() if n)
    waiting = sum(w["waiting"] for w in status["waiting"])
    lines = [f"{status['pool']['live']} live  {counts}  waiting {waiting}  showing {shown} of {known}"]
    return "\n".join(
        [*lines, *(f"{'!!' if w['level'] == 'bad' else '!'} {w['text']}" for w in status["worries"][:5])]
    )
