"""A chain of a stock Celery app: acquire a worker, use it, release it. No step waits for another in a process.

    make up                                                             # in one terminal
    .venv/bin/celery -A examples.celery_chain worker --pool threads     # in another: your own worker
    .venv/bin/python -m examples.celery_chain                           # in a third

A refusal is an answer too, so each step looks at the outcome. The claim is not renewed: choose `lease_s` longer
than the work takes, or use the client, which renews (`examples/celery_task.py`).
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

from celery import Celery, chain, signature


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


app = Celery("shop", broker=broker_url(), backend=broker_url())


def acquire(org: str, **options: object) -> Any:
    """Return a signature of the pool's task. It needs no code of the pool."""
    return signature("pool.acquire", kwargs={"org": org, **options}, queue="acquire", app=app)


@app.task(name="shop.work", bind=True)
def work(self: Any, answer: dict[str, Any], question: str) -> dict[str, Any]:
    """Use the worker of an answer, then release it, whatever happens in between."""
    if answer["outcome"] != "granted":
        return {"refused": answer["reason"]}
    headers = {
        "Authorization": f"Bearer {answer['token']}",
        "X-Warmpool-Claim": answer["claim_id"],
        "X-Warmpool-Epoch": str(answer["epoch"]),
    }
    try:
        request = urllib.request.Request(  # noqa: S310 - the pool's own endpoint
            f"{answer['endpoint']}/echo", data=question.encode(), headers=headers
        )
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            found: dict[str, Any] = json.load(response)
        return found
    finally:
        self.app.send_task("pool.release", kwargs={"claim_id": answer["claim_id"]}, queue="acquire")


def main() -> int:
    """Send the chain, and wait for its last step."""
    done = chain(acquire("acme", wait_s=30, lease_s=60), work.s("hello"))()
    found = done.get(timeout=60)
    print(found)
    return "refused" in found


if __name__ == "__main__":
    sys.exit(main())
