"""A FastAPI service that borrows a worker for each request.

make up                                                # in one terminal
.venv/bin/uvicorn examples.fastapi_service:app         # in another
curl -d hello http://127.0.0.1:8000/orgs/acme/ask      # in a third
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request

from warmpool import AsyncPool, BrokerDown, Refused


def broker_url() -> str:
    """Return the broker's URL: from the environment, else from the file that `make up` wrote."""
    data_dir = os.environ.get("WARMPOOL_DATA_DIR", ".warmpool")
    return os.environ.get("WARMPOOL_BROKER_URL") or Path(data_dir, "run", "broker.url").read_text()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one pool for the process, and release all its claims when the service stops."""
    async with AsyncPool(broker_url(), name="fastapi") as pool:
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orgs/{org}/ask")
async def ask(org: str, request: Request) -> dict[str, Any]:
    """Ask a worker. A refusal becomes 503 with the time after which to try again."""
    question = await request.body()
    try:
        async with app.state.pool.acquire(org, wait_s=10) as worker:
            return await asyncio.to_thread(call, f"{worker.endpoint}/echo", question, worker.auth)
    except Refused as no:
        retry = {"Retry-After": str(math.ceil(no.retry_after_s or 5))}
        raise HTTPException(503, f"{no.reason}: {no.detail}", headers=retry) from no
    except BrokerDown as down:
        raise HTTPException(503, str(down)) from down


def call(url: str, question: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """Make a blocking call, so that the example needs no HTTP library; use your asyncio client here."""
    request = urllib.request.Request(url, data=question, headers=headers)  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: dict[str, Any] = json.load(response)
    return answer
