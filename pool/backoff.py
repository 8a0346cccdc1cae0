"""The one retry policy: exponential, jittered, bounded in tries and in time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from pool.clock import Clock
from pool.errors import Transient

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """First pause, growth, longest pause, number of tries."""

    first_s: float = 0.05
    factor: float = 2.0
    limit_s: float = 5.0
    tries: int = 5

    def pauses(self) -> Iterator[float]:
        """The pauses between tries: one fewer than tries, each between half and all of its nominal length."""
        pause = self.first_s
        for _ in range(self.tries - 1):
            yield pause * (0.5 + random.random() / 2)  # noqa: S311 - jitter, not a secret
            pause = min(pause * self.factor, self.limit_s)

    def nominal(self, attempt: int) -> float:
        """The pause after failure number `attempt` (1 is the first), without jitter."""
        return min(self.first_s * self.factor ** min(attempt - 1, 60), self.limit_s)


def retrying(
    call: Callable[[], T], *, policy: Backoff, clock: Clock, stop: threading.Event | None = None
) -> T:
    """Call until it does not raise `Transient`; the last one is raised. `stop` ends the waiting early."""
    stop = stop or threading.Event()
    for pause in policy.pauses():
        try:
            return call()
        except Transient:
            if clock.wait(stop, pause):
                break
    return call()
