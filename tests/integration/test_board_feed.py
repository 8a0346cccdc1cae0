"""The one reader behind all browsers: it misses no late commit, sends only what changed, and lets
no browser fall behind.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from sqlalchemy import delete

from pool.core.clock import SystemClock
from pool.core.states import State
from pool.ops.board import feed as feeding
from pool.ops.board.feed import Feed, TooMany
from pool.ops.board.rendering import Links, Templates
from pool.store import Store, audit, schema
from tests.support.board_server import BoardServer
from tests.support.busy_hour import passes_are_well
from tests.support.world import World


@pytest.fixture
def pool(store: Store) -> World:
    made = World(store)
    made.warm(3)
    passes_are_well(made)
    return made


def a_feed(world: World) -> Feed:
    render = Templates(links=Links(flower_url="", pod_url="")).panels
    return Feed(world.store, world.deps.settings, SystemClock(), render)


def shown(feed: Feed, worker_id: str) -> str:
    return next(str(c.state) for c in feed.fleet._at.values() if c.id == worker_id)


async def heard(listening: AsyncIterator[str]) -> list[dict[str, Any]]:
    text = await anext(listening)
    return [json.loads(part.removeprefix("data: ")) for part in text.split("\n\n") if part]


def test_a_journal_entry_that_is_committed_late_is_seen(pool: World) -> None:
    async def scene() -> None:
        feed = a_feed(pool)
        await feed.refresh()
        # Entries with higher numbers were committed, and seen, before this one.
        feed._entry += 100
        got = pool.granted("acme")
        await feed.refresh()
        assert shown(feed, got.worker_id) == State.HOT

    asyncio.run(scene())


def test_a_flood_of_refused_requests_hides_no_audit_entry(pool: World) -> None:
    with pool.store.write() as tx:
        audit.record(tx, "pool_paused", "pool", who=pool.deps.who, why="pool paused")
        for n in range(50):
            audit.record(tx, schema.REQUEST_REFUSED, "no org", who=pool.deps.who, why=f"forged {n}")

    async def scene() -> None:
        feed = a_feed(pool)
        await feed.refresh()
        panel = feed.panels["moves"]
        assert "pool_paused" in panel
        assert "forged 49" in panel
        assert panel.count("request_refused") == feeding.REFUSALS_SHOWN

    asyncio.run(scene())


def test_changes_missing_from_the_journal_are_found_by_comparing(pool: World) -> None:
    async def scene() -> None:
        feed = a_feed(pool)
        await feed.refresh()
        got = pool.granted("acme")
        with pool.store.write() as tx:
            tx.execute(delete(schema.journal))
        await feed.refresh()
        assert shown(feed, got.worker_id) == State.IDLE
        feed.readings = 120
        await feed.refresh()
        assert shown(feed, got.worker_id) == State.HOT

    asyncio.run(scene())


def test_a_listener_gets_every_change_and_a_slow_one_gets_a_full_update(pool: World) -> None:
    async def scene() -> None:
        feed = a_feed(pool)
        async with aclosing(feed.listen()) as listening:
            [first] = await heard(listening)
            assert len(first["cells"]["states"]) == 3
            for _ in range(5):
                await feed.refresh()
            assert len(await heard(listening)) == 5
            pool.granted("acme")
            for _ in range(feeding.FRAMES_KEPT + 2):
                await feed.refresh()
            [whole] = await heard(listening)
            assert len(whole["cells"]["states"]) == 3
            assert set(whole["panels"]) == set(first["panels"])
        assert feed._listeners == 0

    asyncio.run(scene())


def test_only_changed_panels_are_sent(pool: World) -> None:
    async def scene() -> None:
        feed = a_feed(pool)
        async with aclosing(feed.listen()) as listening:
            await heard(listening)
            await feed.refresh()
            [nothing] = await heard(listening)
            assert not {"orgs", "worries", "moves", "legend"} & set(nothing["panels"])
            assert "cells" not in nothing
            pool.granted("acme")
            await feed.refresh()
            [told] = await heard(listening)
            assert {"orgs", "moves", "legend", "numbers"} <= set(told["panels"])

    asyncio.run(scene())


def test_browsers_above_the_limit_are_refused_with_a_reason(
    pool: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "MOST_LISTENERS", 1)

    async def scene() -> None:
        feed = a_feed(pool)
        async with aclosing(feed.listen()) as listening:
            await heard(listening)
            with pytest.raises(TooMany, match="1 browsers are connected"):
                feed.must_have_room()
        feed.must_have_room()

    asyncio.run(scene())


def test_a_browser_above_the_limit_gets_a_response(pool: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import urllib3

    monkeypatch.setattr(feeding, "MOST_LISTENERS", 0)
    with BoardServer(pool) as board:
        answer = urllib3.request("GET", f"{board.url}/events", retries=False)
        assert answer.status == 503
        assert b"the maximum of one board" in answer.data
