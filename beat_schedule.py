"""When each pass is due. Data only: every pass is guarded by its lock, so any number of beats may send these."""

from __future__ import annotations

from typing import Any

from pool.core.names import PASSES
from pool.core.periods import PERIODS_S, tick_s

beat_schedule: dict[str, dict[str, Any]] = {
    f"pool.{name}": {"task": f"pool.{name}", "schedule": tick_s(name), "options": {"queue": PASSES}}
    for name in PERIODS_S
}
