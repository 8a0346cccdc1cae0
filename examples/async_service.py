"""The same service with asyncio: several customers at once, one connection, one renewal for all that is held.

    make up                                    # in one terminal
    .venv/bin/python examples/async_service.py # in another

With three workers warm all of them are served at once; further ones wait for the next to be ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path

from pool.client import AsyncPool, AsyncWorker, Refused

ORGS = ("acme", "bolt", "cargo")


def broker_url() -> str:
    """Where the broker is: as configured, else what the pool started by `make up` wrote down."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


def call(url: str, question: str, headers: dict[str, str]) -> dict[str, object]:
    """A blocking call, to keep the example free of an HTTP library; use your asyncio client here."""
    request = urllib.request.Request(url, data=question.encode(), headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: dict[str, object] = json.load(response)
    return answer


async def ask(worker: AsyncWorker, question: str) -> dict[str, object]:
    """One HTTP call to the worker, beside the event loop."""
    return await asyncio.to_thread(call, f"{worker.endpoint}/echo", question, worker.auth)


async def serve(pool: AsyncPool, org: str) -> bool:
    """One customer: waits up to 30 s for a worker, uses it, gives it back."""
    try:
        async with pool.acquire(org, wait_s=30) as worker:
            answer = await ask(worker, f"hello from {org}")
            print(f"{org}: {worker.worker_id} ({worker.source}) says {answer['body']!r}")
    except Refused as no:
        print(f"{org}: refused, {no.reason}: {no.detail}", file=sys.stderr)
        return False
    return True


async def main() -> int:
    """All customers at once."""
    async with AsyncPool(broker_url(), name="example") as pool:
        served = await asyncio.gather(*(serve(pool, org) for org in ORGS))
    return 0 if all(served) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
