"""Commands of operators, on a pool without Redis or processes: exit codes for scripts, errors that
name the problem, colour only on a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from pool.core.ids import WorkerId
from pool.ops import operating
from pool.ops.cli import app as root
from pool.ops.cli.printing import painted
from pool.ops.operating import Operator
from pool.store import Store
from tests.support.busy_hour import passes_are_well
from tests.support.system import ROOT
from tests.support.world import World


@pytest.fixture
def pool(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.chdir(tmp_path)
    for name in [n for n in os.environ if n.startswith("WARMPOOL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WARMPOOL_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WARMPOOL_DATABASE_URL", store.engine.url.render_as_string(hide_password=False))
    made = World(store)
    made.warm(3)
    passes_are_well(made)
    return made


def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        root.main(argv)
    assert isinstance(exit_.value.code, int)
    return exit_.value.code


def test_status_reports_a_healthy_pool_and_exits_nonzero_on_a_bad_finding(
    pool: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status") == 0
    assert capsys.readouterr().out.splitlines()[1] == "no problems found"
    operating.set_pool_paused(pool.store, paused=True, operator=Operator(name="a", way="cli", why=""))
    assert run("status") == 0
    assert "\n! the pool is paused" in capsys.readouterr().out
    pool.pass_time(60)
    assert run("status") == 1
    told = capsys.readouterr().out
    assert "\n!! beat is dark" in told
    assert told.index("!! beat is dark") < told.index("! the pool is paused")
    assert run("passes") == 1
    assert "DARK" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["get", "nothing"], 2, "'nothing' is not one of 'workers'"),
        (["get", "workers", "--state", "warm"], 2, "Invalid value for '--state': Value error, 'warm' is not one of 'spawning'"),
        (["get", "workers", "--limit", "0"], 2, "Invalid value for '--limit'"),
        (["get", "workers", "-o", "xml"], 2, "Invalid value for '--output'"),
        (["explain", "w-none"], 1, "there is no worker 'w-none', neither live nor in the journal"),
        (["explain", "none"], 1, "no worker and no request 'none'"),
        (["events", "w-none"], 1, "no journal entry for worker 'w-none'"),
        (["top"], 1, "the output is not a terminal"),
        (["top", "--every", "0"], 2, "Invalid value for '--every'"),
        (["profile", "set-warm", "default", "many"], 1, "invalid target 'many': give a whole number"),
        (["profile", "set-warm", "none", "1"], 1, "unknown profile 'none'; configured are: default"),
        (["org", "set", "acme", "--cap", "-1"], 2, "Invalid value for '--cap'"),
        (["pass", "pause", "none"], 1, "unknown pass 'none'; the passes are: reconcile_warm"),
        (["simulate"], 2, "give exactly one demand"),
        (["simulate", "none.csv"], 1, "none.csv: No such file or directory"),
        (["simulate", "--poisson", "1", "--try", "warm=3"], 1, "a simulation cannot change 'warm'"),
        (["simulate", "--poisson", "1", "--try", "warm_target=-1"], 1, "invalid change 'warm_target=-1': write NAME=NUMBER with a whole number"),
    ],
)  # fmt: skip
def test_an_error_names_the_wrong_argument(
    pool: World, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, said: str
) -> None:
    assert run(*argv) == code
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert told.out == ""


def test_an_unreadable_trace_names_its_line(
    pool: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    for text, said in (
        ("time,org\n1,a\n", "line 1: the header lacks hold_s"),
        ("time,org,profile,hold_s\n1,a,default,5\nsoon,a,default,5\n", "line 3: time is 'soon'"),
        ("time,org,profile,hold_s\n1,a,default,long\n", "line 2: hold_s is 'long'"),
    ):
        trace.write_text(text)
        assert run("simulate", str(trace)) == 1
        assert said in capsys.readouterr().err


def test_lists_are_the_same_in_every_form(pool: World, capsys: pytest.CaptureFixture[str]) -> None:
    got = pool.granted("acme")
    capsys.readouterr()
    assert run("get", "workers", "--state", "hot", "-o", "json") == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["id"], row["org"]) == (got.worker_id, "acme")
    assert run("get", "workers", "--org", "acme") == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["ID", "PROFILE", "STATE", "ORG"]
    assert line.split()[:4] == [got.worker_id, "default", "hot", "acme"]
    assert run("get", "workers", "--org", "acme", "-o", "wide") == 0
    assert got.claim_id in capsys.readouterr().out
    assert run("get", "workers", "--org", "unknown") == 0
    assert capsys.readouterr().out == "no workers found\n"
    operating.drain(pool.deps, [WorkerId(got.worker_id)], Operator(name="a", way="cli", why="a try"))
    assert run("events", got.worker_id) == 0
    assert "leaving: drained: a try" in capsys.readouterr().out


def test_explain_of_a_request_id_that_two_orgs_used_names_both(
    pool: World, capsys: pytest.CaptureFixture[str]
) -> None:
    pool.granted("acme", request_id="twice")
    pool.granted("bolt", request_id="twice")
    assert run("explain", "twice") == 1
    assert "choose one with --org: acme, bolt" in capsys.readouterr().err
    assert run("explain", "several") == 1
    assert "no worker and no request 'several'" in capsys.readouterr().err


def test_events_as_json_have_reason_and_detail_as_two_fields(
    pool: World, capsys: pytest.CaptureFixture[str]
) -> None:
    got = pool.granted("acme")
    operating.retire(pool.deps, WorkerId(got.worker_id), Operator(name="a", way="cli", why="a try"))
    capsys.readouterr()
    assert run("events", got.worker_id, "--json") == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["to_state"], last["reason"], last["detail"]) == ("draining", "retired", "a try")
    assert last["who"] == "a (cli)"


def test_states_findings_and_headings_have_their_colours() -> None:
    told = painted("!! beat is down\n! a pass is paused\nSTATE  ORG\nidle   -\nlost   acme\n")
    assert "\033[1;31m!! beat is down" in told
    assert "\033[33m! a pass is " in told
    assert "\033[1mSTATE  ORG" in told
    assert "\033[32midle" in told
    assert "\033[31mlost" in told


def test_a_pipe_gets_no_colour_and_a_terminal_does(pool: World) -> None:
    command = [sys.executable, "-m", "pool.ops.cli", "get", "workers"]
    env = {**os.environ, "TERM": "xterm-256color"}
    piped = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=60)
    assert b"idle" in piped.stdout
    assert b"\033" not in piped.stdout
    assert b"\033[32midle" in on_a_terminal(command, env)
    assert b"\033" not in on_a_terminal(command, {**env, "NO_COLOR": "1"})


def on_a_terminal(command: list[str], env: dict[str, str]) -> bytes:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while piece := os.read(ours, 65_536):
                said += piece
        except OSError:
            """The other end was closed: the output ends."""
        process.wait(60)
    os.close(ours)
    return said
