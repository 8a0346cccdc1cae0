"""A board without the master key, Redis or a cluster: actions of operators are written to the
table, and the passes carry them out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pool import wiring
from pool.core.errors import BrokenPromise
from pool.core.ids import WorkerId
from pool.core.states import State
from pool.ops.up.ports import free_port
from pool.passes.reap import DELETE_GRACE_S
from pool.store import Store
from tests.support.board_client import BoardClient
from tests.support.board_server import PASSWORD, BoardServer
from tests.support.postgres_server import PostgresServer
from tests.support.system import ROOT
from tests.support.waiting import eventually
from tests.support.world import World


class AnyWorker:
    """Workers that accept every configuration."""

    def activate(self, *_: object) -> None:
        """Accept."""

    def healthy(self, *_: object) -> bool:
        return True


@pytest.fixture
def board(world: World) -> Iterator[BoardServer]:
    with BoardServer(world) as made:
        yield made


def act(client: BoardClient, worker_id: str, verb: str) -> None:
    path = f"/act/workers/{worker_id}/{verb}"
    assert client.post(path, {"token": client.token(path)}) == 303


def test_a_process_for_operators_has_no_key_no_lock_and_no_driver(world: World) -> None:
    deps = wiring.build_for_operators(world.deps.settings, world.store, role="board")
    for worker_id in ("w-1", "w-1-k123abc"):
        with pytest.raises(BrokenPromise, match="without a master key"):
            deps.worker_key(WorkerId(worker_id))
        with pytest.raises(BrokenPromise, match="without a master key"):
            deps.keys.knows(WorkerId(worker_id))
    with pytest.raises(BrokenPromise, match="without a master key"):
        deps.new_worker()
    with pytest.raises(BrokenPromise, match="without a master key"):
        deps.keys.org_key("acme", 1, own_queue=False)
    with pytest.raises(BrokenPromise):
        deps.locks.taken("reap", 1.0)
    with pytest.raises(BrokenPromise):
        _ = deps.driver
    deps.broker.send("pool.retire", worker_id="w-1")
    assert world.broker.sent == []


def test_workers_that_the_board_drained_or_retired_are_deleted_by_the_next_reap(
    world: World, board: BoardServer
) -> None:
    world.warm(3)
    gone, kept = world.granted("acme"), world.granted("acme")
    idle = next(w.id for w in world.workers(State.IDLE))
    world.broker.sent.clear()
    client = BoardClient(board)
    client.sign_in()
    act(client, idle, "drain")
    act(client, gone.worker_id, "retire")
    act(client, kept.worker_id, "drain")
    assert world.broker.sent == [], "the board sends nothing"
    assert set(world.renew(gone.claim_id, kept.claim_id)["gone"]) == {gone.claim_id}
    world.pass_time(DELETE_GRACE_S + 1)
    world.run_pass("reap")
    world.settle()
    assert [world.state_of(w) for w in (idle, gone.worker_id)] == [State.RETIRED] * 2
    assert set(world.driver.pods) == {kept.worker_id}
    assert world.state_of(kept.worker_id) is State.HOT
    world.release(kept.claim_id)
    world.settle()
    assert world.state_of(kept.worker_id) is State.RETIRED


def test_a_request_whose_worker_is_retired_during_activation_is_still_answered(
    world: World, board: BoardServer
) -> None:
    world.profile(activation_path="/activate")
    world.deps = replace(world.deps, worker_api=AnyWorker())
    world.warm(3)
    task = world.waits("acme", wait_s=600)
    [bound] = world.workers(State.RESERVED)
    world.broker.sent.clear()
    client = BoardClient(board)
    client.sign_in()
    act(client, bound.id, "retire")
    for _ in range(3):
        world.pass_time(world.deps.settings.pool.activation_stuck_s + 1)
        for name in ("reap", "sweep_stuck", "reconcile_warm"):
            world.run_pass(name)
        world.settle()
    [answer] = world.broker.answers_for(task)
    assert answer["outcome"] == "granted"
    assert world.state_of(bound.id) is State.RETIRED


@dataclass
class RealBoard:
    """Run `warmpool board` as a separate process."""

    port: int
    folder: Path


@contextmanager
def running(folder: Path, database_url: str, *options: str) -> Iterator[RealBoard]:
    port = free_port()
    bare = {k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")}
    env = bare | {
        "WARMPOOL_DATABASE_URL": database_url,
        "WARMPOOL_DATA_DIR": str(folder / "data"),
        "WARMPOOL_RUN_BOARD_PASSWORD": PASSWORD,
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-m", "pool.ops.cli", "board", "--port", str(port), *options]
    with subprocess.Popen(argv, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("board on ")
            made = RealBoard(port, folder)
            eventually(lambda: _answers(made), within_s=60)
            yield made
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def _answers(board: RealBoard) -> bool:
    try:
        return BoardClient(board).get("/healthz")[0] == 200
    except OSError:
        return False


def test_the_board_command_needs_only_the_database(
    postgres: PostgresServer, store: Store, tmp_path: Path
) -> None:
    world = World(store)
    world.warm(2)
    got = world.granted("acme")
    [idle] = [w.id for w in world.workers(State.IDLE)]
    url = postgres.url("shared")
    options = ("--trusted-proxy", "127.0.0.9", "--sso-user-header", "X-User", "--sso-operator", "carol")
    with running(tmp_path, url, *options) as board:
        client, carol = BoardClient(board), BoardClient(board, address="127.0.0.9")
        client.sign_in()
        act(client, got.worker_id, "retire")
        path = f"/act/workers/{idle}/drain"
        token = carol.get(path, X_User="carol")[1].split('name="token" value="')[1].split('"')[0]
        assert carol.post(path, {"token": token}, X_User="carol") == 303
        assert client.get("/workers/%00")[0] == 400
    assert not (tmp_path / "data").exists(), "no key was made"
    assert [world.state_of(w) for w in (got.worker_id, idle)] == [State.DRAINING] * 2
    assert {e.who for e in world.rows("journal")} >= {"alice (board)", "carol (board, single sign-on)"}
    world.check()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--sso-user-header", "X-User"), "needs a trusted proxy"),
        (("--trusted-proxy", "everywhere"), "give an address or a network"),
        (("--trusted-proxy", "0.0.0.0/0"), "every address"),
    ],
)
def test_invalid_options_of_the_board_command_are_explained(
    tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    argv = [sys.executable, "-m", "pool.ops.cli", "board", *options]
    env = os.environ | {"WARMPOOL_DATA_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert sentence in " ".join(done.stderr.split())
