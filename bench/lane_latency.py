"""One call at a time: the time of an acquire compared with the least that Redis and Postgres need,
and with stock Celery.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.ground import BenchGround, ground, signing_twin
from bench.measuring import BenchReport, Effort, interleaved
from bench.peers import stock
from bench.populating import askers
from pool.client import Pool, Worker
from tests.support.system import System

FULL = Effort(rounds=12, calls=40, warm_up=60)
QUICK = Effort(rounds=5, calls=25, warm_up=40)
# Its peers may still be starting at the first call.
START_S = 120
_BARE = stock.CLAIM.replace(":org", "%s")


class Calling:
    """A call that may leave something to reset."""

    def __init__(self, call: Callable[[], Any], after: Callable[[Any], None] = lambda _: None) -> None:
        self._call = call
        self._after = after
        self._made: Any = None

    def once(self) -> None:
        self._made = self._call()

    def after(self) -> None:
        self._after(self._made)

    def between(self) -> None:
        """One of them resets everything."""


class PuttingRight(Calling):
    """That one."""

    def __init__(self, place: BenchGround, call: Callable[[], Any], after: Callable[[Any], None]) -> None:
        super().__init__(call, after)
        self._place = place

    def between(self) -> None:
        self._place.put_right()


def run(effort: Effort) -> BenchReport:
    """Start everything, measure, end everything."""
    with (
        tempfile.TemporaryDirectory(prefix="warmpool-bench-") as folder,
        ground(Path(folder)) as place,
        ExitStack() as stack,
    ):
        signing = signing_twin(place, Path(folder) / "signing", stack)
        measured = interleaved(_subjects(place, signing, stack), effort)
    floor, bare, noop = "Redis ping-pong + one commit", "Redis ping-pong", "stock Celery no-op .get()"
    figures = (
        measured.ratio("acquire to ping-pong + one commit", "acquire", floor, most=1.7, gate=3.0),
        measured.ratio("acquire to stock Celery no-op .get()", "acquire", noop, most=0.4, gate=1.5),
        measured.ratio("the floor of that: ping-pong + one commit to stock no-op", floor, noop),
        measured.ratio("acquire to stock no-op, prefork as by default", "acquire", f"{noop}, prefork"),
        measured.ratio("acquire to stock Celery claim", "acquire", "stock Celery claim"),
        measured.ratio("release to ping-pong + one commit", "release", floor, most=2.0, gate=4.0),
        measured.ratio("signed acquire to acquire", "acquire, signed", "acquire"),
        measured.ratio(
            "acquire by send_task().get() to stock Celery claim",
            "acquire by send_task().get()",
            "stock Celery claim",
        ),
        measured.ratio("ping-pong to itself (the noise)", f"{bare} (again)", bare),
    )
    return BenchReport(bench="lane-latency", figures=figures, measured=measured)


def _subjects(place: BenchGround, signing: System, stack: ExitStack) -> dict[str, Calling]:
    client = redis.Redis.from_url(place.url, socket_timeout=START_S + 10)
    database = stack.enter_context(psycopg.connect(place.database, autocommit=True))
    pool = stack.enter_context(Pool(place.url, name="bench"))
    stock.app.conf.update(broker_url=place.url, result_backend=place.url)
    orgs, held = itertools.cycle(askers()), list[Worker]()
    key = signing.command("org", "key", askers()[0]).strip()
    signed = stack.enter_context(Pool(signing.redis.url, name="bench", org_key=key))

    def echo(queue: str) -> Callable[[], Any]:
        def call() -> Any:
            client.lpush(queue, f"bench.{queue}")
            return client.blpop([f"bench.{queue}"], timeout=START_S)

        return call

    def acquire() -> Worker:
        return pool.acquire(next(orgs), lease_s=3600, ttl_s=0)

    def send_task() -> Any:
        sent = stock.app.send_task(
            "pool.acquire", kwargs={"org": next(orgs), "lease_s": 3600, "ttl_s": 0}, queue="acquire"
        )
        return sent.get(timeout=START_S)

    def took(worker: Worker) -> None:
        place.used("lane", 1)
        held.append(worker)

    def taken(granted: Any) -> None:
        assert granted["outcome"] == "granted", granted
        place.used("lane", 1)

    # So that every release finds a claim.
    held += [acquire() for _ in range(3)]
    place.used("lane", 3)
    return {
        "Redis ping-pong": Calling(echo("echo")),
        "Redis ping-pong (again)": Calling(echo("echo")),
        "Redis ping-pong + one commit": Calling(echo("echo-commit")),
        "raw psycopg claim": Calling(
            lambda: database.execute(_BARE, (next(orgs),), prepare=True).fetchone(),
            lambda _: place.used("stock", 1),
        ),
        "acquire": PuttingRight(place, acquire, took),
        "release": Calling(lambda: held.pop(0).release()),
        "acquire, signed": Calling(
            lambda: signed.acquire(askers()[0], lease_s=3600, ttl_s=0), lambda _: place.used("lane", 1)
        ),
        "acquire by send_task().get()": Calling(send_task, taken),
        "stock Celery no-op .get()": Calling(lambda: stock.nothing.delay().get(timeout=START_S)),
        "stock Celery no-op .get(), prefork": Calling(
            lambda: stock.nothing.apply_async(queue="stock-prefork").get(timeout=START_S)
        ),
        "fdatasync of 8 kB": Calling(_sync(stack)),
        "stock Celery claim": Calling(
            lambda: stock.claim.delay(next(orgs)).get(timeout=START_S), lambda _: place.used("stock", 1)
        ),
    }


def _sync(stack: ExitStack) -> Callable[[], Any]:
    """The time that the disk needs to store a rewritten page: a commit cannot take less."""
    file = stack.enter_context(tempfile.TemporaryFile(dir="/tmp"))  # noqa: SIM115 - the stack closes it
    file.write(bytes(8192))
    file.flush()

    def call() -> None:
        os.pwrite(file.fileno(), os.urandom(8192), 0)
        os.fdatasync(file.fileno())

    return call
