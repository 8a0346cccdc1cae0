"""`python -m bench.peers.caller KIND REDIS`: one client process under load. Reads plans as JSON lines
and answers each with the seconds of every call.

A plan is `{"at": [...], "threads": n}`: when each call is due, from now. A call that begins late
because earlier calls are slow is measured from when it was due, so that a slow server is not hidden
by its clients.

Kinds: `lane` acquires, `cycle` acquires and releases, `ahead` requests its next worker before it
releases the last one, `refused` is refused, `stock` is the peer.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bench.peers import stock
from bench.populating import askers
from pool.client import Pool
from pool.core.errors import Refused

GIVE_UP_S = 60.0
# A worker stays with its org: few orgs for few workers, so that each has some.
FEW_ORGS = 4


def main(kind: str, url: str) -> None:
    if kind == "ahead":
        pool = Pool(url, name="bench")
        print("ready", flush=True)
        for line in sys.stdin:
            plan = json.loads(line)
            print(json.dumps(run_ahead(pool, len(plan["at"]), plan["threads"])), flush=True)
        return
    call = _calls(kind, url)
    call(0)
    print("ready", flush=True)
    for line in sys.stdin:
        plan = json.loads(line)
        print(json.dumps(run(call, plan["at"], plan["threads"])), flush=True)


def run(call: Callable[[int], Any], at: list[float], threads: int) -> list[float]:
    """Return the seconds from when each call was due to its answer."""
    begun = time.perf_counter()
    pause = threading.Event()

    def one(number: int) -> float:
        due = begun + at[number]
        if (left := due - time.perf_counter()) > 0:
            pause.wait(left)
        call(number)
        return time.perf_counter() - due

    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(one, range(len(at))))


def run_ahead(pool: Pool, cycles: int, clients: int) -> list[float]:
    """Return the seconds of each cycle, of clients that each request their next worker while they
    release the one they have. So every client always has an acquire outstanding: with fewer workers
    than clients each of them waits.
    """
    begun = time.perf_counter()

    def client(number: int) -> list[float]:
        org, ended = askers()[number % FEW_ORGS], []
        releasing: Future[str] | None = None
        for _ in range(cycles // clients):
            worker = pool.acquire(org, wait_s=GIVE_UP_S, lease_s=3600, ttl_s=3600)
            if releasing is not None:
                releasing.result()
                ended.append(time.perf_counter() - begun)
            releasing = releasers.submit(worker.release)
        if releasing is not None:
            releasing.result()
            ended.append(time.perf_counter() - begun)
        return ended

    with ThreadPoolExecutor(clients) as releasers, ThreadPoolExecutor(clients) as executor:
        return [seconds for found in executor.map(client, range(clients)) for seconds in found]


def _calls(kind: str, url: str) -> Callable[[int], Any]:
    orgs = askers()
    if kind == "lane":
        pool = Pool(url, name="bench")
        return lambda n: pool.acquire(orgs[n % len(orgs)], lease_s=3600, ttl_s=0)
    if kind == "cycle":
        pool = Pool(url, name="bench")
        return lambda n: pool.acquire(orgs[n % len(orgs)], lease_s=3600, ttl_s=60).release()
    if kind == "refused":
        pool = Pool(url, name="bench")
        return lambda n: _refused(pool, orgs[n % len(orgs)])
    stock.app.conf.update(broker_url=url, result_backend=url)
    return lambda n: stock.claim.delay(orgs[n % len(orgs)]).get(timeout=GIVE_UP_S)


def _refused(pool: Pool, org: str) -> None:
    try:
        pool.acquire(org, wait_s=0, lease_s=3600)
    except Refused as exc:
        if exc.reason == "pool_cap":
            return
        raise
    raise RuntimeError("not what was to be measured: it was granted")


if __name__ == "__main__":
    main(*sys.argv[1:])
