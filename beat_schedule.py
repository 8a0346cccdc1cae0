"""The schedule of each pass. Data only: each pass has a lock, so any number of beats may send these
ticks.
"""

from __future__ import annotations

from typing import Any

from pool.core.names import PASSES
from pool.core.periods import PERIODS_S, tick_s

beat_schedule: dict[str, dict[str, Any]] = {
    f"pool.{name}": {"task": f"pool.{name}", "schedule": tick_s(name), "options": {"queue": PASSES}}
    for name in PERIODS_S
}
