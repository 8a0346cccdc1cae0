"""A service with its own Celery app and worker, as a shop would have them: `work` records what it
got, once per run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Self

import redis
from celery import Celery, Task

from tests.support.system import ROOT
from tests.support.waiting import eventually

URL = os.environ.get("SHOP_URL", "redis://127.0.0.1:1/0")
RUNS = "shop.runs"

app = Celery("shop", broker=URL, backend=URL, set_as_current=False)


def _record(task: Task[Any, Any], what: object) -> None:
    with redis.Redis.from_url(URL) as data:
        run = {"task": task.name, "id": task.request.id, "parent": task.request.parent_id, "got": what}
        data.rpush(RUNS, json.dumps(run))


@app.task(name="shop.work", bind=True)
def work(self: Task[Any, Any], answer: Any, more: str = "") -> str:
    """Do something with the worker of an answer."""
    _record(self, answer)
    return f"{answer['outcome']}{more}" if isinstance(answer, dict) else "several"


@app.task(name="shop.total", bind=True)
def total(self: Task[Any, Any], results: Any) -> list[Any]:
    """The body of a chord."""
    _record(self, results)
    return [each["outcome"] if isinstance(each, dict) else each for each in results]


@app.task(name="shop.failed", bind=True)
def failed(self: Task[Any, Any], task_id: str) -> str:
    """An errback."""
    _record(self, task_id)
    return task_id


class Shop:
    """The app and its worker process, on the broker of a pool."""

    def __init__(self, url: str, *, queues: str = "celery,billing") -> None:
        self.app = Celery("shop-client", broker=url, backend=url, set_as_current=False)
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self._url, self._queues = url, queues
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = f"-A tests.support.shop worker --pool solo -Q {self._queues} -l ERROR"
        quiet = "--without-gossip --without-mingle --without-heartbeat"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "celery", *command.split(), *quiet.split()],
            cwd=ROOT,
            env={**os.environ, "SHOP_URL": self._url, "PYTHONPATH": str(ROOT)},
        )
        eventually(lambda: self.redis.exists("_kombu.binding.celery"), within_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.app.close()
        self.redis.close()

    def sig(self, task: str, **kwargs: Any) -> Any:
        """Return a signature of a task of the pool, as a stock Celery app makes it."""
        return self.app.signature(f"pool.{task}", kwargs=kwargs, queue="acquire")

    def task(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self.app.signature(f"shop.{name}", args=args, kwargs=kwargs)

    def runs(self, task: str = "shop.work") -> list[dict[str, Any]]:
        """Return what each run of this task got."""
        found: Any = self.redis.lrange(RUNS, 0, -1)
        return [run for run in map(json.loads, found) if run["task"] == task]
