"""Progress of warming up: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pool.core.errors import PoolError
from pool.ops.up.terminal import Terminal

WarmCounts = Callable[[], tuple[int, int]]

ASK_EVERY_S = 0.5
LINE_EVERY_S = 5.0
GIVE_UP_AFTER_S = 60.0
_BAR = 20


@dataclass(slots=True)
class StartProgress:
    """Shows `counts` (idle, target) until the target is met, for at most a minute; warming then continues
    without it."""

    counts: WarmCounts | None
    terminal: Terminal
    began_at: float | None = None
    asked_at: float = float("-inf")
    said_at: float = float("-inf")

    def finished(self, now: float) -> bool:
        """Read and show the progress; return True once there is nothing more to show."""
        if self.counts is None:
            return True
        self.began_at = now if self.began_at is None else self.began_at
        if now - self.asked_at < ASK_EVERY_S:
            return False
        self.asked_at = now
        idle, target = self._ask()
        overdue = now - self.began_at > GIVE_UP_AFTER_S
        if idle >= target or overdue:
            self.terminal.live("")
            verdict = (
                f"{idle} of {target} warm so far; warming continues in the background"
                if overdue
                else f"{idle} of {target} warm"
            )
            self.terminal.tell(f"workers  {verdict}")
            return True
        self._show(idle, target, now)
        return False

    def _ask(self) -> tuple[int, int]:
        """Return idle and target; (0, 1) while the database does not answer yet."""
        try:
            return self.counts() if self.counts else (0, 0)
        except PoolError:
            return 0, 1

    def _show(self, idle: int, target: int, now: float) -> None:
        if self.terminal.is_tty:
            filled = _BAR * max(idle, 0) // max(target, 1)
            self.terminal.live(f"workers  [{'#' * filled}{'.' * (_BAR - filled)}] {idle} of {target} warm")
        elif now - self.said_at >= LINE_EVERY_S:
            self.said_at = now
            self.terminal.tell(f"workers  {idle} of {target} warm")
