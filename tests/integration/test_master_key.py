"""The master key changes while claims are live: in three steps, each a restart of the control
plane, in which no holder loses its worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest
from sqlalchemy import select

from pool.core import tokens
from pool.core.states import State
from pool.store import schema
from tests.support.postgres_server import PostgresServer
from tests.support.signed import SignedCaller, key_of
from tests.support.system import System

OLD, NEW = "the key that was there before today", "the key that is to be from now on"
SETTINGS: dict[str, Any] = {"profiles": {"default": {"warm_target": 2}}}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def system(postgres: PostgresServer, tmp_path: Any) -> Iterator[System]:
    url = postgres.create_database("master_key")
    with System(tmp_path, url, settings=keyed(master_key=OLD)) as made:
        made.run("acquire", "fleet")
        made.command("pass", "run", "reconcile_warm")
        made.wait_idle(2)
        yield made


def keyed(**keys: str) -> dict[str, Any]:
    return {**SETTINGS, "pool": {"signed_requests": True, "hot_idle_ttl_s": 600, **keys}}


def works(granted: dict[str, Any]) -> bool:
    """Return whether the worker accepts the holder of this grant."""
    shown = tokens.headers(granted["claim_id"], granted["epoch"], granted["token"])
    with urlopen(Request(f"{granted['endpoint']}/echo", headers=shown), timeout=10) as answer:
        return bool(json.loads(answer.read())["claim"] == granted["claim_id"])


def findings(system: System) -> set[str]:
    printed = system.command("doctor", "--json", ok=(0, 1))
    return {f["id"] for f in json.loads(printed)["findings"]}


def test_a_change_of_the_master_key_ends_no_claim(system: System) -> None:
    caller = SignedCaller(system)
    old, new = key_of("acme", master=OLD), key_of("acme", master=NEW)
    asked = {"org": "acme", "request_id": "kept", "lease_s": 3600}
    held = caller.ask("pool.acquire", old, **asked)
    assert works(held)

    # Step one: all processes accept the new key, none uses it.
    system.configure(keyed(master_key=OLD, master_key_next=NEW))
    system.restart()
    assert caller.ask("pool.acquire", old, **asked)["token"] == held["token"]
    assert caller.ask("pool.cancel", new, request_id="x")["outcome"] == "unknown_request"

    # Step two: new workers and keys are created under it.
    system.configure(keyed(master_key=NEW, master_key_previous=OLD))
    system.restart()
    assert caller.ask("pool.acquire", old, **asked)["token"] == held["token"]
    again = caller.ask("pool.acquire", new, **asked)
    assert again["token"] == held["token"]
    assert works(again)
    assert caller.ask("pool.renew", new, claim_ids=[held["claim_id"]])["gone"] == {}
    assert caller.ask("pool.release", new, claim_id=held["claim_id"]) == {"outcome": "released"}
    parked = caller.ask("pool.acquire", new, org="acme")
    assert parked["worker_id"] == held["worker_id"]
    assert works(parked)
    assert "old_master_key" in findings(system)
    made = made_now(system, caller)
    assert works(made)
    assert made["worker_id"][-6:] != held["worker_id"][-6:]

    # Step three: of the old key only unused keys are left.
    caller.ask("pool.release", new, claim_id=parked["claim_id"])
    for worker in live(system):
        if worker[-6:] == held["worker_id"][-6:]:
            system.command("drain", "worker", worker)
    assert "old_master_key" not in findings(system)
    system.configure(keyed(master_key=NEW))
    system.restart()
    assert caller.ask("pool.cancel", old, request_id="x")["reason"] == "invalid"
    assert caller.ask("pool.renew", key_of("bolt", master=NEW), claim_ids=[made["claim_id"]])["gone"] == {}
    assert "unknown_master_key" not in findings(system)
    caller.close()


def made_now(system: System, caller: SignedCaller) -> dict[str, Any]:
    """A worker that was created under the current key."""
    before = set(live(system))
    bolt = key_of("bolt", master=NEW)
    taken = []
    while system.count(State.IDLE):
        taken.append(caller.ask("pool.acquire", bolt, org="bolt", lease_s=3600))
    system.command("pass", "run", "reconcile_warm")
    system.wait_idle(2)
    granted = caller.ask("pool.acquire", bolt, org="bolt", lease_s=3600)
    assert granted["worker_id"] not in before
    for each in taken:
        assert caller.ask("pool.release", bolt, claim_id=each["claim_id"]) == {"outcome": "released"}
    return granted


def live(system: System) -> list[str]:
    W = schema.workers
    gone = [State.RETIRED, State.LOST, State.DRAINING]
    with system.store.read() as tx:
        return list(tx.execute(select(W.c.id).where(W.c.state.not_in(gone))).scalars())
