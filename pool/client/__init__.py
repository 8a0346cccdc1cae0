"""What services import to get workers. Needs redis and the standard library, and imports redis when a pool is made.

    from pool.client import Pool
    pool = Pool("redis://…")
    with pool.acquire("acme", profile="default", wait_s=30) as worker:    # renewed in the background, released on exit
        requests.get(worker.endpoint, headers=worker.auth)

With asyncio the same call is `async with AsyncPool("redis://…").acquire("acme") as worker`. A service with a Celery app
of its own may as well say `app.send_task("pool.acquire", kwargs={"org": "acme"}, queue="acquire").get()`, and renew and
release by itself.

Where the pool takes signed requests only, `Pool(url, org_key=…)` signs them, with what `warmpool org key` prints; so do WARMPOOL_ORG_KEY and a file
that WARMPOOL_ORG_KEY_FILE names.

A Redis ACL that is enough for a client named "billing": `-@all +hello +auth +ping +client|setname +client|setinfo +select +time +lpush
%W~acquire (+blpop +lpop +rpush +expire ~warmpool.reply.billing.*)`, on Redis 7.2 or newer; `warmpool org acl` prints it whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pool.client.blocking import Pool, Worker
from pool.client.errors import AnswerOverdue, BrokerDown, ClaimLost, PoolClosed, TaskFailed
from pool.core.errors import Refused

if TYPE_CHECKING:
    from pool.client.aio import AsyncPool, AsyncWorker

__all__ = [
    "AnswerOverdue",
    "AsyncPool",
    "AsyncWorker",
    "BrokerDown",
    "ClaimLost",
    "Pool",
    "PoolClosed",
    "Refused",
    "TaskFailed",
    "Worker",
]


def __getattr__(name: str) -> object:
    # asyncio is half of what importing this package would cost.
    if name in {"AsyncPool", "AsyncWorker"}:
        from pool.client import aio

        return getattr(aio, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
