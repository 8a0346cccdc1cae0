"""The tasks of the pool and their queues. Pure."""

from __future__ import annotations

from pool.core.names import ACQUIRE, BIND, FLEET, PASSES
from pool.core.periods import PERIODS_S

ROUTES = {
    "pool.acquire": ACQUIRE,
    "pool.renew": ACQUIRE,
    "pool.release": ACQUIRE,
    "pool.cancel": ACQUIRE,
    "pool.canary": ACQUIRE,
    "pool.spawn": FLEET,
    "pool.retire": FLEET,
    "pool.activate": BIND,
    "pool.stamp": BIND,
    "pool.refill": PASSES,
    **{f"pool.{name}": PASSES for name in PERIODS_S},
}
# Tasks that only the control plane sends.
INTERNAL_TASKS = frozenset({"pool.canary", *(task for task, queue in ROUTES.items() if queue != ACQUIRE)})
