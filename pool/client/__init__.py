"""The client library that services import to acquire workers. It needs redis and the standard
library. redis is imported when a pool is created.

    from warmpool import Pool
    pool = Pool("redis://…")  # or Pool(), with WARMPOOL_BROKER_URL set
    with pool.acquire("acme", profile="default", wait_s=30) as worker:  # renewed, then released
        requests.get(worker.endpoint, headers=worker.auth)

With asyncio the same call is `async with AsyncPool("redis://…").acquire("acme") as worker`. A
service with its own Celery app can also call `app.send_task("pool.acquire", kwargs={"org": "acme"},
queue="acquire").get()`; it must then renew and release by itself.

If the pool accepts only signed requests, `Pool(url, org_key=…)` signs them with the key that
`warmpool org key` prints. The variable WARMPOOL_ORG_KEY, or a file named by WARMPOOL_ORG_KEY_FILE,
has the same effect. The org of the key is then the default of `acquire`.

The Redis ACL for a client named "billing", on Redis 7.2 or newer: `-@all +hello +auth +ping
+client|setname +client|setinfo +select +time +lpush %W~acquire (+blpop +lpop +rpush +expire
~warmpool.reply.billing.*)`. `warmpool org acl` prints the complete line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pool.client.aio import AsyncPool
    from pool.client.aio_held import AsyncWorker, AsyncWorkers
    from pool.client.blocking import Pool
    from pool.client.errors import (
        AnswerOverdue,
        BrokerDenied,
        BrokerDown,
        ClaimLost,
        InvalidUrl,
        PoolClosed,
        TaskFailed,
    )
    from pool.client.held import Worker, Workers
    from pool.core.errors import InvalidInput, PoolError, Refused, Transient
    from pool.core.literals import (
        CancelOutcome,
        RefusalReason,
        ReleaseCondition,
        ReleaseOutcome,
        WorkerSource,
    )

__all__ = [
    "AnswerOverdue",
    "AsyncPool",
    "AsyncWorker",
    "AsyncWorkers",
    "BrokerDenied",
    "BrokerDown",
    "CancelOutcome",
    "ClaimLost",
    "InvalidInput",
    "InvalidUrl",
    "Pool",
    "PoolClosed",
    "PoolError",
    "RefusalReason",
    "Refused",
    "ReleaseCondition",
    "ReleaseOutcome",
    "TaskFailed",
    "Transient",
    "Worker",
    "WorkerSource",
    "Workers",
]

# Imported at first use: a worker, the pytest plugin and a service with asyncio each need a part.
_MODULES = {
    "pool.client.aio": ("AsyncPool",),
    "pool.client.aio_held": ("AsyncWorker", "AsyncWorkers"),
    "pool.client.blocking": ("Pool",),
    "pool.client.errors": (
        *(
            "AnswerOverdue",
            "BrokerDenied",
            "BrokerDown",
            "ClaimLost",
            "InvalidUrl",
            "PoolClosed",
            "TaskFailed",
        ),
    ),
    "pool.client.held": ("Worker", "Workers"),
    "pool.core.errors": ("InvalidInput", "PoolError", "Refused", "Transient"),
    "pool.core.literals": (
        *("CancelOutcome", "RefusalReason", "ReleaseCondition", "ReleaseOutcome", "WorkerSource"),
    ),
}
_MODULE_OF = {name: module for module, several in _MODULES.items() for name in several}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return found
