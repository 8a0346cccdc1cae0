"""A stand-in for the server: the four tasks of the contract in a stock Celery app, with answers on the
reply list.

It keeps its claims in Redis, where a test can read and damage them. Run by a real Celery worker
process: `python -m celery -A tests.support.standin_pool worker --pool threads -Q acquire`, with
STANDIN_URL set.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import redis
from celery import Celery, Task

from tests.support.waiting import eventually

REPLY_PREFIX = "warmpool.reply."
REPLY_EXPIRES_S = 300
LEASE_END = "2031-05-01T12:00:00.000Z"
RENEWED_END = "2031-05-01T12:00:30.000Z"
ROOT = Path(__file__).parents[2]


def make_app(url: str) -> Celery:
    app = Celery("standin", broker=url, backend=url)
    app.conf.update(
        task_default_queue="acquire", broker_connection_retry_on_startup=True, worker_hijack_root_logger=False
    )
    data = redis.Redis.from_url(url, decode_responses=True)

    class Answering(Task[Any, Any]):
        """Push the answer to the reply list, unless it is to be lost."""

        def after_return(
            self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
        ) -> None:
            data.rpush("standin:ran", json.dumps([self.name, task_id, kwargs]))
            reply_to = self.request.reply_to or ""
            if not reply_to.startswith(REPLY_PREFIX) or data.lpop("standin:lose"):
                return
            if isinstance(retval, Exception):
                retval = {"exc_type": type(retval).__name__, "exc_message": list(retval.args)}
            meta = {"task_id": task_id, "status": status, "result": retval, "traceback": None}
            with data.pipeline(transaction=False) as pipe:
                pipe.rpush(reply_to, json.dumps(meta))
                pipe.expire(reply_to, REPLY_EXPIRES_S)
                pipe.execute()

    @app.task(name="pool.acquire", base=Answering)
    def acquire(org: str, request_id: str, **_: Any) -> dict[str, Any]:
        return _acquire(data, org, request_id)

    @app.task(name="pool.renew", base=Answering)
    def renew(claim_ids: list[str]) -> dict[str, Any]:
        return _renew(data, claim_ids)

    @app.task(name="pool.release", base=Answering)
    def release(claim_id: str, condition: str = "clean") -> dict[str, Any]:
        return _release(data, claim_id, condition)

    @app.task(name="pool.cancel", base=Answering)
    def cancel(org: str, request_id: str) -> dict[str, Any]:
        return _cancel(data, org, request_id)

    return app


def _acquire(data: redis.Redis, org: str, request_id: str) -> dict[str, Any]:
    if org == "full":
        return {"outcome": "refused", "reason": "org_cap", "retry_after_s": 1.5, "detail": "2 of 2 in use"}
    if org == "broken":
        raise RuntimeError("the database is away")
    request = f"{org}|{request_id}"
    data.hsetnx("standin:requests", request, json.dumps(a_grant(data.incr("standin:number"))))
    granted: dict[str, Any] = json.loads(data.hget("standin:requests", request) or "")
    data.hset("standin:claims", granted["claim_id"], "live")
    return granted


def _renew(data: redis.Redis, claim_ids: list[str]) -> dict[str, Any]:
    ends = {claim_id: data.hget("standin:claims", claim_id) or "unknown claim" for claim_id in claim_ids}
    gone = {claim_id: end for claim_id, end in ends.items() if end != "live"}
    return {"renewed": {claim_id: RENEWED_END for claim_id in ends if claim_id not in gone}, "gone": gone}


def _release(data: redis.Redis, claim_id: str, condition: str) -> dict[str, Any]:
    end = data.hget("standin:claims", claim_id)
    if end is None:
        return {"outcome": "unknown_claim"}
    data.hset("standin:claims", claim_id, condition)
    return {"outcome": "released" if end == "live" else "already_released"}


def _cancel(data: redis.Redis, org: str, request_id: str) -> dict[str, Any]:
    known = data.hexists("standin:requests", f"{org}|{request_id}")
    return {"outcome": "already_answered" if known else "unknown_request"}


def a_grant(number: int = 1) -> dict[str, Any]:
    return {
        "outcome": "granted",
        "claim_id": f"c-{number}",
        "worker_id": f"w-{number}",
        "epoch": 7,
        "pod": f"w-{number}",
        "endpoint": f"http://10.0.0.{number}:8080",
        "token": f"secret-{number}",
        "lease_expires_at": LEASE_END,
        "source": "warm",
    }


class StandIn:
    """The stand-in as a running service, with controls for a test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._data = redis.Redis.from_url(url, decode_responses=True)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = "-A tests.support.standin_pool worker --pool threads -c 8 -Q acquire -l ERROR"
        quiet = "--without-gossip --without-mingle --without-heartbeat"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", *command.split(), *quiet.split()],
            cwd=ROOT,
            env={**os.environ, "STANDIN_URL": self.url, "PYTHONPATH": str(ROOT)},
        )
        eventually(self._is_consuming, within_s=30)
        return self

    def _is_consuming(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the Celery worker ended"
        return bool(self._data.exists("_kombu.binding.acquire"))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._data.close()

    def lose_next_reply(self) -> None:
        self._data.rpush("standin:lose", "1")

    def end_claim(self, claim_id: str, cause: str) -> None:
        self._data.hset("standin:claims", claim_id, cause)

    def claim(self, claim_id: str) -> str | None:
        """Return the state of the claim: live, the condition of its release, or why it ended."""
        found = self._data.hget("standin:claims", claim_id)
        return None if found is None else str(found)

    def ran(self, task: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the task id and arguments of every run of a task."""
        runs = [json.loads(run) for run in self._data.lrange("standin:ran", 0, -1)]
        return [(task_id, kwargs) for name, task_id, kwargs in runs if name == task]


if "STANDIN_URL" in os.environ:
    app = make_app(os.environ["STANDIN_URL"])
