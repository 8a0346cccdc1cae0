"""The same service with asyncio: several customers at once, one connection, one renewal for all claims.

    make up                                    # in one terminal
    .venv/bin/python examples/async_service.py # in another

With three warm workers all three customers are served at once; more customers wait until a worker is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path

from warmpool import AsyncPool, AsyncWorker, Refused

ORGS = ("acme", "bolt", "cargo")


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


def call(url: str, question: str, headers: dict[str, str]) -> dict[str, object]:
    """Make a blocking call, so that the example needs no HTTP library; use your asyncio client here."""
    request = urllib.request.Request(url, data=question.encode(), headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: dict[str, object] = json.load(response)
    return answer


async def ask(worker: AsyncWorker, question: str) -> dict[str, object]:
    """Make one HTTP call to the worker outside the event loop."""
    return await asyncio.to_thread(call, f"{worker.endpoint}/echo", question, worker.auth)


async def serve(pool: AsyncPool, org: str) -> bool:
    """Serve one customer: wait up to 30 s for a worker, use it, release it."""
    try:
        async with pool.acquire(org, wait_s=30) as worker:
            answer = await ask(worker, f"hello from {org}")
            print(f"{org}: {worker.worker_id} ({worker.source}) answers {answer['body']!r}")
    except Refused as no:
        print(f"{org}: refused, {no.reason}: {no.detail}", file=sys.stderr)
        return False
    return True


async def main() -> int:
    """Serve all customers at once."""
    async with AsyncPool(broker_url(), name="example") as pool:
        served = await asyncio.gather(*(serve(pool, org) for org in ORGS))
    return 0 if all(served) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
