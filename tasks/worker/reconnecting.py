"""How often a process of the control plane tries to reach a broker that is away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Pauses between two attempts, in seconds, as arguments of kombu's `ensure_connection`.
SOON: dict[str, Any] = {"interval_start": 0.2, "interval_step": 0.2, "interval_max": 1.0}


def _nothing() -> None:
    pass


class OnceLogged:
    """Logs the first failed attempt of an outage. Called by kombu after each."""

    def __init__(self, log: Any, then: Callable[[], None] = _nothing) -> None:
        self._log = log
        self._then = then
        self._is_logged = False

    def __call__(self, exc: Exception, interval_s: float) -> None:  # noqa: ARG002
        if not self._is_logged:
            self._log.warning("broker_away", cause=str(exc))
            self._is_logged = True
        self._then()
