"""A service that acquires a worker, calls it over HTTP and releases it.

    make up                              # in one terminal
    .venv/bin/python examples/service.py # in another, as often as you like

A second run within a minute gets the same worker (source hot_idle), because it is still parked for its org.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path

from warmpool import BrokerDown, Pool, Refused, Worker


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


def ask(worker: Worker, question: str) -> dict[str, object]:
    """Make one HTTP call to the worker. `worker.auth` has the headers that prove the claim."""
    request = urllib.request.Request(  # noqa: S310 - the pool's own endpoint
        f"{worker.endpoint}/echo", data=question.encode(), headers=worker.auth
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: dict[str, object] = json.load(response)
    return answer


def main() -> int:
    """Serve one customer. The claim is renewed in the background and released at the end of the block."""
    with Pool(broker_url(), name="example") as pool:
        try:
            with pool.acquire("acme", profile="default", wait_s=30) as worker:
                print(f"got {worker.worker_id} at epoch {worker.epoch}, source {worker.source}")
                print(f"it answers {ask(worker, 'hello')}")
            # Safe to run twice: if the worker is lost meanwhile, it runs again on another one.
            answer = pool.run(lambda worker: ask(worker, "hello again"), "acme", idempotent=True, wait_s=30)
            print(f"worker {answer['worker']} answers {answer['body']!r}")
        except Refused as no:
            print(f"refused, {no.reason}: {no.detail}; try again in {no.retry_after_s} s", file=sys.stderr)
            return 1
        except BrokerDown as down:
            print(down, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
