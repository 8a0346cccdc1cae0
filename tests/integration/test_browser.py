"""The board in a real browser: its content, its updates, the keyboard, light and dark, without
console errors.

WARMPOOL_TEST_SHOTS=1 renews the pictures in docs/img/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from pool.core.ids import WorkerId
from pool.core.states import State
from pool.ops import operating
from pool.ops.board.proxies import Proxies
from pool.ops.board.users import SignOn
from pool.ops.operating import Operator
from pool.store import Store
from tests.support.board_server import PASSWORD, BoardServer
from tests.support.browser import chromium, opened
from tests.support.busy_hour import an_hour, many, now_with_trouble, passes_are_well
from tests.support.system import ROOT
from tests.support.waiting import eventually
from tests.support.world import World

SHOTS = os.environ.get("WARMPOOL_TEST_SHOTS") == "1"
IMAGES = ROOT / "docs" / "img"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def world(store: Store) -> World:
    return World(store)


def look(page: Page, board: BoardServer, *, cells: int | None = None) -> None:
    page.goto(board.url)
    page.wait_for_selector("#live.on")
    if cells is not None:
        expect(page.locator("#fleet")).to_have_attribute("data-cells", str(cells))


def keep(page: Page, tmp_path: Path, name: str, *, whole: bool = True) -> None:
    """Take a picture, into the documentation on request."""
    folder = IMAGES if SHOTS else tmp_path
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / f"{name}.png", full_page=whole)
    assert (folder / f"{name}.png").stat().st_size > 10_000


def legend(page: Page, state: str) -> int:
    return int(re.sub(r"\D", "", page.inner_text(f"[data-state={state}] b")))


@pytest.mark.timeout(900 if SHOTS else 120)
def test_the_board_shows_the_pool_in_light_and_dark_without_console_errors(
    world: World, browser: Browser, tmp_path: Path
) -> None:
    an_hour(world, minutes=60 if SHOTS else 6)
    now_with_trouble(world)
    count = len(world.workers(*(s for s in State if s not in {State.RETIRED, State.LOST})))
    with BoardServer(world) as board:
        backgrounds = {}
        for scheme in ("light", "dark"):
            with opened(browser, scheme=scheme, width=1280) as (page, heard):
                look(page, board, cells=count)
                expect(page.locator(".worries")).to_contain_text(
                    "profile gpu cannot start workers: ImagePullBackOff"
                )
                expect(page.locator("#waiting")).to_contain_text("flint is at its cap (4 of 4 workers)")
                expect(page.locator("#orgs")).to_contain_text("flint")
                expect(page.locator("#passes")).to_contain_text("guard_disruption")
                expect(page.locator("#moves")).to_contain_text("marked as leaving")
                expect(page.locator("#moves")).to_contain_text("alice (cli)")
                expect(page.locator("#idling")).to_contain_text("vCPU·h")
                assert page.locator("#hour path").count() >= 3
                assert legend(page, "hot") == len(world.workers(State.HOT))
                page.hover("#fleet canvas", position={"x": 30, "y": 26})
                expect(page.locator("#cell")).to_contain_text("w-0000")
                keep(page, tmp_path, f"board-{scheme}")
                backgrounds[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
                assert heard.errors == []
        assert backgrounds["light"] != backgrounds["dark"]


def test_the_board_fits_a_phone_and_shows_when_the_pool_is_healthy(
    world: World, browser: Browser, tmp_path: Path
) -> None:
    world.warm(3)
    world.granted("acme")
    passes_are_well(world)
    with BoardServer(world) as board, opened(browser, width=390, height=844) as (page, heard):
        look(page, board, cells=3)
        expect(page.locator(".worry.good")).to_have_text("✓ No problems found.")
        for path in ("", f"/workers/{world.workers(State.HOT)[0].id}"):
            page.goto(board.url + path)
            assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.goto(board.url)
        page.wait_for_selector("#live.on")
        expect(page.locator("#moves")).to_contain_text("acme")
        assert page.locator("#moves th:text-is('Who')").is_hidden()
        keep(page, tmp_path, "phone")
        assert heard.errors == []


def test_orgs_are_searched_by_a_part_of_their_name(world: World, browser: Browser) -> None:
    world.warm(3)
    for org in ("acme", "acne", "bolt"):
        world.granted(org)
    passes_are_well(world)
    found = "[...fleet_shown.cells.values()].map(c => fleet_shown.isFaint(c))"
    with BoardServer(world) as board, opened(browser) as (page, heard):
        page.add_init_script("window.fleet_shown = null")
        look(page, board, cells=3)
        page.evaluate("() => { const d = Fleet.prototype.drawAll; Fleet.prototype.drawAll = function () { window.fleet_shown = this; return d.call(this); }; }")  # fmt: skip
        page.fill("#find", "AC")
        eventually(lambda: page.evaluate("window.fleet_shown !== null"), within_s=30)
        assert page.evaluate(found) == [False, False, True]
        page.fill("#find", "")
        eventually(lambda: page.evaluate(found) == [False, False, False], within_s=30)
        assert heard.errors == []


def test_a_new_worker_takes_an_empty_place_and_no_other_worker_moves(world: World, browser: Browser) -> None:
    ids = world.warm(6)
    passes_are_well(world)
    with BoardServer(world) as board, opened(browser) as (page, heard):
        look(page, board, cells=6)
        page.evaluate("() => { window.laid = 0; const l = Fleet.prototype.layOut; Fleet.prototype.layOut = function () { window.laid += 1; return l.call(this); }; }")  # fmt: skip
        operating.drain(world.deps, [WorkerId(ids[1])], Operator(name="alice", way="cli", why=""))
        world.settle()
        expect(page.locator("#fleet")).to_have_attribute("data-cells", "5")
        world.warm(1)
        expect(page.locator("#fleet")).to_have_attribute("data-cells", "6")
        assert page.evaluate("window.laid") == 0
        assert heard.errors == []


def test_a_cell_turns_when_its_worker_is_claimed(world: World, browser: Browser) -> None:
    world.warm(3)
    passes_are_well(world)
    with BoardServer(world) as board, opened(browser) as (page, heard):
        look(page, board, cells=3)
        colour = (
            "[...document.querySelector('#fleet canvas').getContext('2d').getImageData(8, 26, 1, 1).data]"
        )
        idle = page.evaluate(colour)
        got = world.granted("acme")
        expect(page.locator("[data-state=hot] b")).to_have_text("1")
        eventually(lambda: page.evaluate(colour) != idle, within_s=30)
        expect(page.locator("#moves")).to_contain_text(got.worker_id)
        expect(page.locator("#orgs")).to_contain_text("acme")
        assert heard.errors == []


def test_the_board_works_with_the_keyboard_and_a_workers_page_shows_its_history(
    world: World, browser: Browser, tmp_path: Path
) -> None:
    world.warm(2)
    got = world.granted("acme")
    world.release(got.claim_id)
    again = world.granted("acme")
    with BoardServer(world) as board, opened(browser, width=1280, height=640) as (page, heard):
        look(page, board, cells=2)
        page.focus("#fleet")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#cell")).to_contain_text(got.worker_id)
        expect(page.locator("#cell-said")).to_contain_text(got.worker_id)
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/workers/{got.worker_id}")
        expect(page.locator(".life")).to_contain_text("Claimed again by acme")
        expect(page.locator(".life")).to_contain_text("Its slot was created")
        expect(page.locator("main")).to_contain_text(f"acme is using it (claim {again.claim_id})")
        assert page.locator("a[href='http://127.0.0.1:5555/task/task-1']").count() == 1
        assert page.locator(f"a[href='https://console.test/pods/{got.worker_id}']").count() == 1
        assert page.locator("text=Retire…").is_hidden()
        keep(page, tmp_path, "worker", whole=False)
        assert heard.errors == []


def test_a_signed_in_operator_drains_a_worker_after_a_confirmation(world: World, browser: Browser) -> None:
    [idle] = world.warm(1)
    with BoardServer(world) as board, opened(browser) as (page, heard):
        page.goto(f"{board.url}/workers/{idle}")
        page.click("text=Sign in to act")
        page.fill("[name=name]", "alice")
        page.fill("[name=password]", PASSWORD)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{board.url}/workers/{idle}")
        page.click("text=Drain…")
        expect(page.locator("main")).to_contain_text("No claim ends early")
        assert world.state_of(idle) is State.IDLE
        page.fill("[name=why]", "a try")
        page.click("text=Drain as alice")
        expect(page.locator(".life")).to_contain_text("drained by alice (board): a try")
        assert world.state_of(idle) is State.DRAINING
        assert heard.errors == []


def test_a_viewer_of_single_sign_on_sees_the_fleet_and_no_buttons(world: World, browser: Browser) -> None:
    an_hour(world)
    passes_are_well(world)
    proxy = Proxies.parse(["127.0.0.1"])
    sign_on = SignOn(user_header="X-User", operators=frozenset({"alice"}))
    with (
        BoardServer(world, proxies=proxy, sign_on=sign_on) as board,
        opened(browser, extra_http_headers={"X-User": "bob@acme.test"}) as (page, heard),
    ):
        look(page, board)
        expect(page.locator("nav")).to_contain_text("bob@acme.test")
        expect(page.locator("nav")).to_contain_text("viewer")
        expect(page.locator("#act-reap")).to_be_hidden()
        expect(page.get_by_text("Sign in to act")).to_have_count(0)
        page.goto(f"{board.url}/workers/{world.workers()[0].id}")
        expect(page.get_by_text("Drain…")).to_have_count(0)
        assert heard.errors == []
    with (
        BoardServer(world, proxies=proxy, sign_on=sign_on) as board,
        opened(browser, extra_http_headers={"X-User": "alice"}) as (page, _),
    ):
        look(page, board)
        expect(page.locator("#act-reap")).to_be_visible()


def test_an_update_of_ten_thousand_workers_draws_only_what_changed(store: Store, browser: Browser) -> None:
    world = World(store)
    many(store, 10_000)
    with BoardServer(world) as board, opened(browser) as (page, heard):
        look(page, board, cells=10_000)
        page.evaluate("() => { window.drawn = 0; const d = Fleet.prototype.draw; Fleet.prototype.draw = function (p) { window.drawn += 1; return d.call(this, p); }; const a = Fleet.prototype.drawAll; Fleet.prototype.drawAll = function () { window.drawn += 1e6; return a.call(this); }; }")  # fmt: skip
        with store.write() as tx:
            tx.exec_driver_sql(
                "UPDATE workers SET state='draining', epoch=epoch+1 WHERE id IN (SELECT id FROM workers WHERE state='idle' LIMIT 300)"
            )
        expect(page.locator("[data-state=draining] b")).to_have_text("300")
        eventually(lambda: page.evaluate("window.drawn") >= 300, within_s=30)
        assert page.evaluate("window.drawn") == 300
        sizes = page.evaluate("performance.getEntriesByName('update').map(e => e.detail)")
        assert max(sizes) < 200_000, sizes
        assert heard.errors == []
