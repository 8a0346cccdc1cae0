"""A pool that is broken on purpose, and the three places where an operator sees it: the board,
`warmpool status` and Prometheus.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import yaml
from playwright.sync_api import Browser, Page

from pool.ops.up.ports import free_port
from tests.support.browser import opened
from tests.support.prometheus import Prometheus
from tests.support.system import ROOT, System
from tests.support.waiting import eventually

PATIENCE_S = 120.0
PERIODS = 3
# A scrape, an evaluation, the shortened `for` and an update of the page, on a busy machine.
OBSERVING_S = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One drill: what was done, and after how many seconds each place showed it."""

    drill: str
    done: str
    period_s: float
    board_s: float
    status_s: float
    alert_s: float

    @property
    def limit_s(self) -> float:
        return PERIODS * self.period_s + OBSERVING_S


class Drill:
    """A pool with an open board and a Prometheus that scrapes it."""

    def __init__(self, system: System, browser: Browser, folder: Path, rows: list[Row]) -> None:
        self.system = system
        self.prometheus = Prometheus(
            folder / "prometheus", system.metrics_ports, rules=hurried(folder / "alerts.yaml")
        )
        self._browser, self._rows = browser, rows
        self._board: subprocess.Popen[bytes] | None = None
        self._log = folder / "board.log"
        self._port = free_port()

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "pool.ops.cli", "board", "--port", str(self._port)]
        with self._log.open("wb") as log:
            self._board = subprocess.Popen(
                words, cwd=ROOT, env=self.system.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        eventually(self._serves, within_s=60, every_s=0.2)
        self.prometheus.__enter__()
        self._opened = opened(self._browser, width=1280)
        self._page, self._heard = self._opened.__enter__()
        self._page.goto(f"http://127.0.0.1:{self._port}/")
        self._page.wait_for_selector("#live.on")
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.__exit__(None, None, None)
        self.prometheus.close()
        assert self._board is not None
        self._board.terminate()
        self._board.wait(timeout=30)

    def quiet(self) -> None:
        """Wait until Prometheus has scraped every component, no alert fires and the board shows no
        finding, so that later findings come from the drill.
        """
        eventually(
            lambda: set(self.prometheus.scraped().values()) == {"up"}, within_s=PATIENCE_S, every_s=0.5
        )
        eventually(
            lambda: not self.prometheus.firing() and not self._told(), within_s=PATIENCE_S, every_s=0.5
        )

    def worries(self) -> set[str]:
        """Return the ids of the findings of `warmpool status`."""
        return {w["id"] for w in self._status()["worries"]}

    def labels(self, alert: str, label: str) -> set[str]:
        found = self.prometheus.query(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
        return {r["metric"][label] for r in found}

    def seen(self, drill: str, done: str, *, worry: str, text: str, alert: str, period_s: float) -> Row:
        """Wait until all three places show the fault, each within its time."""
        began = time.monotonic()
        in_status = _Asking(self._status, worry, self.system.store.now())
        places: dict[str, Callable[[], bool]] = {
            "board": lambda: text in self._told(),
            "alert": lambda: alert in self.prometheus.firing(),
            "status": lambda: in_status.after_s is not None,
        }
        after = dict.fromkeys(places, PATIENCE_S)

        def all_of_them() -> bool:
            for place, shows in places.items():
                if after[place] == PATIENCE_S and shows():
                    after[place] = time.monotonic() - began
            return max(after.values()) < PATIENCE_S

        try:
            eventually(all_of_them, within_s=PATIENCE_S, every_s=0.2)
        except AssertionError:
            missing = [place for place, s in after.items() if s == PATIENCE_S]
            raise AssertionError(
                f"{drill}: not seen in {missing} after {PATIENCE_S:.0f} s; the board shows {self._told()!r}, "
                f"status {self.worries()}, firing {self.prometheus.firing()}"
            ) from None
        finally:
            in_status.stop()
        row = Row(
            drill=drill, done=done, period_s=period_s, board_s=after["board"],
            status_s=in_status.after_s or PATIENCE_S,
            alert_s=after["alert"],
        )  # fmt: skip
        self._rows.append(row)
        assert max(row.board_s, row.status_s, row.alert_s) <= row.limit_s, row
        assert self._heard.errors == []
        return row

    def _status(self) -> dict[str, Any]:
        return dict(json.loads(self.system.command("status", "--json", ok=(0, 1))))

    def _told(self) -> str:
        page: Page = self._page
        return "\n".join(page.locator(".worry.bad, .worry.warn").all_inner_texts())

    def _serves(self) -> bool:
        assert self._board is not None
        assert self._board.poll() is None, self._log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/healthz", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class _Asking:
    """Runs `status` repeatedly in its own thread, because it takes longer than the other two
    places. The moment that counts is the database time in its output, not the time that a busy
    machine takes to start a command.
    """

    def __init__(self, status: Callable[[], dict[str, Any]], worry: str, began: datetime) -> None:
        self.after_s: float | None = None
        self._status, self._worry, self._began = status, worry, began
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            told = self._status()
            if self._worry in {w["id"] for w in told["worries"]}:
                self.after_s = (datetime.fromisoformat(told["at"]) - self._began).total_seconds()
                return

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)


def hurried(file: Path) -> Path:
    """Return the shipped rules, with `for` reduced to one second."""
    rules = yaml.safe_load((ROOT / "charts" / "warmpool" / "files" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["for"] = "1s"
    file.write_text(yaml.safe_dump(rules))
    return file


def printed(rows: Sequence[Row]) -> str:
    """Print the result of a drill."""
    head = ["drill", "what was done", "3 periods", "board", "status", "alert"]
    lines = [
        [r.drill, r.done, f"{PERIODS * r.period_s:.0f} s", *(f"{s:.1f} s" for s in (r.board_s, r.status_s, r.alert_s))]
        for r in rows
    ]  # fmt: skip
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]
    told = ["  ".join(text.ljust(w) for text, w in zip(line, widths, strict=True)) for line in [head, *lines]]
    return os.linesep.join(["", "", *told])
