"""How warm the pool is, while it warms up: a bar on a terminal, an occasional line elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pool.embedded.terminal import Terminal
from pool.errors import PoolError

WarmCounts = Callable[[], tuple[int, int]]

ASK_EVERY_S = 0.5
LINE_EVERY_S = 5.0
GIVE_UP_AFTER_S = 60.0
_BAR = 20


@dataclass(slots=True)
class Progress:
    """Follows `warm_counts` (idle, target) until the target is met, or for a minute: warming goes on without us."""

    counts: WarmCounts | None
    terminal: Terminal
    began_at: float | None = None
    asked_at: float = float("-inf")
    said_at: float = float("-inf")

    def finished(self, now: float) -> bool:
        """Ask and show; True once there is nothing more to show."""
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
                f"still warming, {idle} of {target}; this goes on" if overdue else f"{idle} of {target} warm"
            )
            self.terminal.tell(f"workers  {verdict}")
            return True
        self._show(idle, target, now)
        return False

    def _ask(self) -> tuple[int, int]:
        """A store that does not answer yet is a pool that is not warm yet."""
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
