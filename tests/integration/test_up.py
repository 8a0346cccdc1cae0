"""`warmpool up` as its user meets it: one command, everything real."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pool.clock import SystemClock
from pool.embedded.datadir import DataDir
from pool.embedded.processes import stop_all, writers_to
from pool.store import connect, journal, orgs
from tests.support.system import ROOT, Load, as_toml, clear_pods, held_twice, processes_about
from tests.support.waiting import eventually

COMPONENTS = ("redis", "acquire", "fleet", "bind", "passes", "beat", "flower")
READY_LIMIT_S = 90.0
# The example of the welcome, for machines without curl.
USE = (
    "import os, urllib.request as u; "
    "head = dict(line.split('\"')[1].split(': ', 1) for line in open(os.environ['WARMPOOL_CURL_CONFIG'])); "
    "print(u.urlopen(u.Request(os.environ['WARMPOOL_ENDPOINT'] + '/echo', headers=head), timeout=20).read().decode())"
)


class Up:
    """Runs of `warmpool up` on one data directory, and commands beside them."""

    def __init__(self, folder: Path) -> None:
        self.place = DataDir.open(folder)
        self.config = folder / "warmpool.toml"
        self.config.write_text(as_toml({"profiles": {"default": {"warm_target": 2}}}))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")}
        self.process: subprocess.Popen[bytes] | None = None
        self.runs = 0

    def start(self) -> None:
        self.runs += 1
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pool.cli", "--config", str(self.config), "up", "--data-dir", str(self.place.root)],
                cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.says("the pool is ready")

    @property
    def output(self) -> Path:
        return self.place.root / f"up-{self.runs}.out"

    def said(self) -> str:
        return self.output.read_text()

    def says(self, text: str, times: int = 1) -> None:
        assert self.process is not None
        process = self.process
        eventually(
            lambda: self.said().count(text) >= times or process.poll() is not None,
            within_s=READY_LIMIT_S,
            every_s=0.1,
        )
        assert self.said().count(text) >= times, self.said()

    def signal(self, sig: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(sig)
        return self.process.wait(timeout=60)

    def pids(self) -> dict[str, int]:
        return {name: entry.ref.pid for name, entry in self.place.read_record().items()}

    def broker_url(self) -> str:
        return self.place.broker_url.read_text()

    def command(self, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "pool.cli", "--config", str(self.config), *words],
            cwd=ROOT, env=self.env | {"WARMPOOL_DATA_DIR": str(self.place.root)},
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode in ok, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def wrongs(self) -> list[str]:
        store = connect(f"sqlite:///{self.place.root / 'pool.db'}")
        try:
            with store.snapshot() as tx:
                entries = journal.since(tx, limit=1_000_000)
                return orgs.miscounted(tx) + journal.disagreements(tx) + held_twice(entries)
        finally:
            store.close()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.signal(signal.SIGINT)
            self.process.kill()
            self.process.wait()
        stop_all(list(writers_to(self.place.logs)), grace_s=5, clock=SystemClock())
        clear_pods(self.place.local)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    made = Up(tmp_path_factory.mktemp("up"))
    try:
        made.start()
        yield made
    finally:
        made.end()


def test_it_says_when_it_is_ready_and_its_example_works(up: Up) -> None:
    said = up.said()
    for name in COMPONENTS:
        assert re.search(rf"^{name} +ready in ", said, re.MULTILINE), said
    assert re.search(r"^migrate +done in ", said, re.MULTILINE)
    [example] = [line for line in said.splitlines() if " acquire --org acme " in line]
    # The command line as it was printed, but for its last word: what runs with the worker.
    words = shlex.split(example)
    assert words[-3:-1] == ["sh", "-c"]
    assert "WARMPOOL_CURL_CONFIG" in words[-1]
    variables = dict(word.split("=", 1) for word in words if re.match(r"WARMPOOL_[A-Z_]+=", word))
    command = [word for word in words if word.split("=", 1)[0] not in variables][:-3]
    done = subprocess.run(
        [*command, sys.executable, "-c", USE], env=up.env | variables, cwd=ROOT, capture_output=True, text=True, timeout=90
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    echo = json.loads(done.stdout)
    assert echo["worker"].startswith("w-")
    again = up.command("acquire", "--org", "acme", "--", sys.executable, "-c", USE)
    assert json.loads(again)["worker"] == echo["worker"]


def test_a_commands_exit_code_and_a_refusal_are_told(up: Up) -> None:
    up.command("acquire", "--org", "acme", "--wait", "20", "--", "sh", "-c", "exit 7", ok=(7,))
    refused = json.loads(up.command("acquire", "--org", "acme", "--profile", "none", "--json", ok=(3,)))
    assert refused["reason"] == "unknown_profile"


def test_a_claim_by_hand_is_seen_released_and_in_the_events(up: Up) -> None:
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


def test_orgs_are_set_and_listed_and_rule_at_once(up: Up) -> None:
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
    assert report["pass"] == "reap"
    assert report["outcome"] in ("ok", "held_elsewhere")
    up.command("pass", "run", "nothing", ok=(1,))


def test_whatever_is_killed_is_started_again_and_the_work_goes_on(up: Up) -> None:
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
            assert f"{name:<9}adopted, pid {before[name]}" in up.said()
        assert up.pids() == before
        load.goes_on(10)
    assert up.wrongs() == []


def test_ctrl_c_stops_all_of_it(up: Up) -> None:
    assert len(processes_about(up.place.root)) > len(COMPONENTS)
    assert up.signal(signal.SIGINT) == 0
    assert processes_about(up.place.root) == {}
    assert re.search(r"^pods +\d+ removed$", up.said(), re.MULTILINE)
    assert up.wrongs() == []
