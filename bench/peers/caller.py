"""`python -m bench.peers.caller KIND REDIS`: one client process under load. Reads plans as JSON lines and answers each with the seconds of every call.

A plan is `{"at": [...], "threads": n}`: when each call is due, from now. A call that begins late because the ones before it are slow is
measured from when it was due, so that a slow server can not hide behind its clients."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.peers import stock
from bench.populating import askers
from pool.client import Pool

GIVE_UP_S = 60.0


def main(kind: str, url: str) -> None:
    call = _calls(kind, url)
    call(0)
    print("ready", flush=True)
    for line in sys.stdin:
        plan = json.loads(line)
        print(json.dumps(run(call, plan["at"], plan["threads"])), flush=True)


def run(call: Callable[[int], Any], at: list[float], threads: int) -> list[float]:
    """Seconds from when each call was due to its answer."""
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


def _calls(kind: str, url: str) -> Callable[[int], Any]:
    orgs = askers()
    if kind == "lane":
        pool = Pool(url, name="bench")
        return lambda n: pool.acquire(orgs[n % len(orgs)], lease_s=3600, ttl_s=0)
    if kind == "cycle":
        pool = Pool(url, name="bench")
        return lambda n: pool.acquire(orgs[n % len(orgs)], lease_s=3600, ttl_s=60).release()
    stock.app.conf.update(broker_url=url, result_backend=url)
    return lambda n: stock.claim.delay(orgs[n % len(orgs)]).get(timeout=GIVE_UP_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
