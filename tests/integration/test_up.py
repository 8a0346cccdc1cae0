"""`warmpool up` as its user runs it: one command, everything real."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import urllib3
from playwright.sync_api import Page, expect

from tests.support.browser import chromium, opened
from tests.support.leftovers import processes_about
from tests.support.system import ROOT, Load
from tests.support.up import USE, Up
from tests.support.waiting import eventually

# Every component is killed and waited for in turn.
pytestmark = pytest.mark.timeout(400)

COMPONENTS = (
    "redis",
    "postgres",
    "acquire",
    "fleet",
    "bind",
    "passes",
    "beat",
    "exporter",
    "flower",
    "board",
)
SHOTS = os.environ.get("WARMPOOL_TEST_SHOTS") == "1"
IMAGES = ROOT / "docs" / "img"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_up_reports_when_it_is_ready_and_its_example_works(up: Up) -> None:
    said = up.said()
    for name in COMPONENTS:
        assert re.search(rf"^{name} +ready in ", said, re.MULTILINE), said
    assert re.search(r"^migrate +done in ", said, re.MULTILINE)
    [example] = [line for line in said.splitlines() if " acquire --org acme " in line]
    # The command line as printed, except its last word: what runs with the worker.
    words = shlex.split(example)
    assert words[-3:-1] == ["sh", "-c"]
    assert "WARMPOOL_CURL_CONFIG" in words[-1]
    variables = dict(word.split("=", 1) for word in words if re.match(r"WARMPOOL_[A-Z_]+=", word))
    command = [word for word in words if word.split("=", 1)[0] not in variables][:-3]
    done = subprocess.run(
        [*command, sys.executable, "-c", USE], env=up.env | variables, cwd=ROOT, capture_output=True,
        text=True, timeout=90
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    echo = json.loads(done.stdout)
    assert echo["worker"].startswith("w-")
    again = up.command("acquire", "--org", "acme", "--", sys.executable, "-c", USE)
    assert json.loads(again)["worker"] == echo["worker"]


def test_exit_codes_and_refusals_of_commands_are_reported(up: Up) -> None:
    up.command("acquire", "--org", "acme", "--wait", "20", "--", "sh", "-c", "exit 7", ok=(7,))
    refused = json.loads(up.command("acquire", "--org", "acme", "--profile", "none", "--json", ok=(3,)))
    assert refused["reason"] == "unknown_profile"


def test_a_claim_of_an_operator_is_listed_released_and_in_the_events(up: Up) -> None:
    claim = json.loads(up.command("acquire", "--org", "byhand", "--wait", "20", "--lease", "60", "--json"))
    assert claim["outcome"] == "granted"
    status = json.loads(up.command("status", "--json", ok=(0, 1)))
    assert status["profiles"]["default"]["states"]["hot"] == 1
    assert set(status["passes"]) >= {"reap", "reconcile_warm"}
    assert json.loads(up.command("release", claim["claim_id"], "--json")) == {"outcome": "released"}
    assert up.command("release", claim["claim_id"]).strip() == "already_released"
    up.command("release", "c-none", ok=(1,))
    events = [json.loads(line) for line in up.command("events", claim["worker_id"], "--json").splitlines()]
    assert [event["to_state"] for event in events][:4] == ["spawning", "idle", "hot", "hot_idle"]
    assert {event["worker_id"] for event in events} == {claim["worker_id"]}


def test_orgs_are_set_and_listed_and_take_effect_at_once(up: Up) -> None:
    up.command("org", "set", "small", "--cap", "1", "--weight", "2")
    [small] = [org for org in json.loads(up.command("org", "list", "--json")) if org["id"] == "small"]
    assert (small["cap"], small["weight"]) == (1, 2.0)
    first = json.loads(up.command("acquire", "--org", "small", "--wait", "20", "--json"))
    assert json.loads(up.command("acquire", "--org", "small", "--json", ok=(3,)))["reason"] == "org_cap"
    up.command("release", first["claim_id"])


def test_passes_are_shown_and_run_dry(up: Up) -> None:
    eventually(lambda: up.command("passes", ok=(0, 1)).count(" ok ") >= 2, within_s=60)
    assert "reap" in json.loads(up.command("passes", "--json", ok=(0, 1)))
    report = json.loads(up.command("pass", "run", "reap", "--dry-run"))
    assert (report["pass"], report["outcome"]) == ("reap", "ok")
    # Whenever it ran last: beat sends this one once an hour, and has just done so.
    assert json.loads(up.command("pass", "run", "collect_garbage"))["outcome"] == "ok"
    up.command("pass", "pause", "collect_garbage")
    assert json.loads(up.command("pass", "run", "collect_garbage", ok=(1,)))["outcome"] == "paused"
    up.command("pass", "resume", "collect_garbage")
    up.command("pass", "run", "nothing", ok=(1,))


def test_operators_commands_answer_on_a_running_pool(up: Up) -> None:
    workers = json.loads(up.command("get", "workers", "-o", "json"))
    assert workers
    assert "\033[" not in up.command("get", "workers")
    assert up.command("get", "passes", "-o", "yaml").startswith("- name: ")
    idle = next(w["id"] for w in workers if w["state"] == "idle")
    assert "Claimable by any org" in up.command("explain", idle)
    up.command("explain", "w-none", ok=(1,))
    assert "drained 1" in up.command("drain", "worker", idle, "--why", "a try")
    eventually(lambda: "It was drained by" in up.command("explain", idle), within_s=30)
    up.command("drain", "node", "nowhere", ok=(1,))
    up.command("drain", "profile", "default", ok=(1,))  # many, and no prompt
    up.command("profile", "set-warm", "default", "3")
    eventually(lambda: '"idle": 3' in up.command("get", "profiles", "-o", "json"), within_s=60)
    up.command("profile", "set-warm", "default", "configured")
    up.command("profile", "set-warm", "none", "1", ok=(1,))
    found = {
        f["id"]: f["level"] for f in json.loads(up.command("doctor", "-o", "json", ok=(0, 1)))["findings"]
    }
    assert found["schema_current"] == found["redis_policy"] == found["redis_persistence"] == "ok"
    up.command("top", ok=(1,))


def test_the_board_and_flower_are_open_in_a_browser_and_show_no_token(up: Up) -> None:
    board, user, password, flower = _pages(up)
    with chromium() as browser:
        with opened(browser) as (page, heard):
            page.goto(board)
            page.wait_for_selector("#live.on")
            claim = json.loads(
                up.command("acquire", "--org", "seen", "--wait", "20", "--lease", "60", "--json")
            )
            expect(page.locator("#moves")).to_contain_text(claim["worker_id"])
            page.goto(f"{board}workers/{claim['worker_id']}")
            task = page.locator("a[href*='/task/']").first.get_attribute("href") or ""
            assert heard.errors == []
        up.command("acquire", "--org", "seen", "--profile", "none", ok=(3,))
        assert urllib3.request("GET", f"{flower}tasks", retries=False).status == 401
        with opened(browser, http_credentials={"username": user, "password": password}) as (page, heard):
            _shows_in_flower(page, flower, "refused unknown_profile")
            _shows_in_flower(page, flower, f"granted {claim['worker_id']}")
            page.goto(task)
            expect(page.locator("body")).to_contain_text("SUCCESS")
            for address in (task, f"{flower}tasks"):
                page.goto(address)
                assert claim["token"] not in page.content()
            result = f"{flower}api/task/result/{task.rsplit('/', 1)[1]}"
            login = urllib3.make_headers(basic_auth=f"{user}:{password}")
            assert (
                claim["token"]
                not in urllib3.request("GET", result, headers=login, retries=False).data.decode()
            )
            assert [e for e in heard.errors if "503" not in e] == []
            page.goto(f"{flower}tasks")
            shot = IMAGES / "flower.png" if SHOTS else up.place.root / "flower.png"
            page.screenshot(path=shot)
    up.command("release", claim["claim_id"])


def _pages(up: Up) -> tuple[str, str, str, str]:
    """Return the addresses that `up` printed: the board, and Flower parsed."""
    [board] = re.findall(r"^  board +(http\S+)$", up.said(), re.MULTILINE)
    [(user, password, rest)] = re.findall(r"^  flower +http://(\w+):(\w+)@(\S+)$", up.said(), re.MULTILINE)
    return board, user, password, f"http://{rest}"


def _shows_in_flower(page: Page, flower: str, text: str) -> None:
    """Flower receives a task slightly later than its caller."""

    def there() -> bool:
        page.goto(f"{flower}tasks")
        page.wait_for_selector("#tasks-table tbody tr")
        page.locator("#tasks-table_filter input").fill(text.rsplit(maxsplit=1)[-1])
        page.wait_for_load_state("networkidle")
        return text in page.content()

    eventually(there, within_s=60)


def test_any_killed_component_is_restarted_and_the_pool_continues(up: Up) -> None:
    with Load(up.broker_url(), orgs=("loop",), threads=2) as load:
        load.goes_on(10)
        for name in COMPONENTS:
            before, ready = up.pids(), up.said().count(f"{name:<9}ready in")
            os.kill(before[name], signal.SIGKILL)
            up.says(f"{name:<9}ready in", times=ready + 1)
            assert up.pids()[name] != before[name]
            assert {n: p for n, p in up.pids().items() if n != name} == {
                n: p for n, p in before.items() if n != name
            }
            load.goes_on(10, within_s=90)
    assert up.wrongs() == []


def test_after_the_supervisor_is_killed_the_pool_serves_and_the_next_one_adopts_it(up: Up) -> None:
    before = up.pids()
    assert up.signal(signal.SIGKILL) == -signal.SIGKILL
    with Load(up.broker_url(), orgs=("loop",), threads=2) as load:
        load.goes_on(10)
        up.start()
        for name in COMPONENTS:
            assert f"{name:<9}already runs, taken over, pid {before[name]}" in up.said()
        assert up.pids() == before
        load.goes_on(10)
    assert up.wrongs() == []


def test_ctrl_c_stops_all_of_it(up: Up) -> None:
    assert len(processes_about(up.place.root)) > len(COMPONENTS)
    assert up.signal(signal.SIGINT) == 0
    assert processes_about(up.place.root) == {}
    assert re.search(r"^pods +\d+ removed$", up.said(), re.MULTILINE)
    assert up.wrongs() == []
