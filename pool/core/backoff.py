"""The retry policy: exponential backoff with jitter and a limit on tries and pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pool.core.clock import Clock
from pool.core.errors import Transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The first pause, its growth factor, the longest pause and the number of tries."""

    first_s: float = 0.05
    factor: float = 2.0
    limit_s: float = 5.0
    tries: int = 5

    def pauses(self) -> Iterator[float]:
        """Yield the pauses between tries, each between 50 % and 100 % of its nominal length."""
        pause = self.first_s
        for _ in range(self.tries - 1):
            yield pause * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret
            pause = min(pause * self.factor, self.limit_s)

    def nominal(self, attempt: int) -> float:
        """Return the pause after failure number `attempt` (the first is 1), without jitter."""
        return min(self.first_s * self.factor ** min(attempt - 1, 60), self.limit_s)


def retrying(
    call: Callable[[], T], *, policy: Backoff, clock: Clock, stop: threading.Event | None = None
) -> T:
    """Call until it does not raise `Transient`; raise the last one. `stop` ends the waiting early."""
    stop = stop or threading.Event()
    for pause in policy.pauses():
        try:
            return call()
        except Transient:
            if clock.wait(stop, pause):
                break
    return call()
