"""A Celery task that borrows a worker with the Python client, which renews the claim while the task runs.

    make up                                                             # in one terminal
    .venv/bin/celery -A examples.celery_task worker --pool threads      # in another: your own worker
    .venv/bin/python -m examples.celery_task                            # in a third

One `Pool` per process: it has one connection and renews all claims of the process together.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery, signals

from warmpool import Pool, Refused


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


app = Celery("shop", broker=broker_url(), backend=broker_url())


@cache
def pool() -> Pool:
    """Return the pool of this process, opened at first use: a process that forks opens its own."""
    return Pool(broker_url(), name="shop")


@signals.worker_process_shutdown.connect
@signals.worker_shutdown.connect
def _close(**_: Any) -> None:
    if pool.cache_info().currsize:
        pool().close()


@app.task(name="shop.ask", bind=True, max_retries=5)
def ask(self: Any, org: str, question: str) -> dict[str, Any]:
    """Borrow a worker for one question. A refusal is retried after its `retry_after_s`."""
    try:
        with pool().acquire(org, wait_s=20) as worker:
            request = urllib.request.Request(  # noqa: S310 - the pool's own endpoint
                f"{worker.endpoint}/echo", data=question.encode(), headers=worker.auth
            )
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
                answer: dict[str, Any] = json.load(response)
            return answer
    except Refused as no:
        raise self.retry(countdown=no.retry_after_s or 5) from no


def main() -> int:
    """Send the task and wait for its result."""
    print(ask.delay("acme", "hello").get(timeout=60))
    return 0


if __name__ == "__main__":
    sys.exit(main())
