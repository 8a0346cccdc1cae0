"""The supervisor with real processes, a real Redis and a real Postgres; only the work of the
components is a stand-in.
"""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import redis

from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.drivers.local.driver import LocalDriver
from pool.drivers.local.processref import ProcessRef
from pool.drivers.port import PodSpec
from pool.ops.up import pods, postgres
from pool.ops.up.datadir import DataDir
from pool.ops.up.processes import stop_all, writers_to
from tests.support.leftovers import processes_about
from tests.support.standin_up import NAMES
from tests.support.waiting import eventually

EVERYTHING = {"redis", "postgres", *NAMES}


@dataclass
class SupervisedUp:
    """One run of the stand-in `up`, in its own process."""

    data_dir: DataDir
    arguments: tuple[str, ...]
    number: int
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.output = self.data_dir.root / f"up-{self.number}.out"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.standin_up", str(self.data_dir.root), *self.arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        return self.output.read_text()

    def says(self, text: str, within_s: float = 20.0) -> None:
        eventually(
            lambda: text in self.said() or (self.process.poll() is not None and self.gone()),
            within_s=within_s,
        )
        assert text in self.said()

    def gone(self) -> bool:
        return self.process.wait() is not None

    def ready(self) -> SupervisedUp:
        self.says("welcome")
        return self

    def ends(self, within_s: float = 20.0) -> int:
        return self.process.wait(timeout=within_s)


@dataclass
class Machine:
    """A data directory and the runs of `up` on it."""

    data_dir: DataDir
    runs: list[SupervisedUp] = field(default_factory=list)

    def up(self, *arguments: str) -> SupervisedUp:
        self.runs.append(SupervisedUp(self.data_dir, arguments, len(self.runs)))
        return self.runs[-1]

    def recorded(self) -> dict[str, ProcessRef]:
        return {name: entry.ref for name, entry in self.data_dir.read_record().items()}

    def running(self) -> set[ProcessRef]:
        """Return every process that writes to a log here, whatever started it."""
        return set(writers_to(self.data_dir.logs))

    def broker(self) -> redis.Redis:
        return redis.Redis.from_url(self.data_dir.broker_url.read_text(), decode_responses=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as left by an earlier `up`: creating one takes seconds."""
    made = DataDir.open(tmp_path_factory.mktemp("cluster"))
    return postgres.prepare(made).folder


@pytest.fixture
def machine(fresh_machine: Machine, cluster: Path) -> Machine:
    subprocess.run(["cp", "-a", cluster, fresh_machine.data_dir.postgres / "data"], check=True)
    return fresh_machine


@pytest.fixture
def fresh_machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(DataDir.open(tmp_path / "data"))
    yield machine
    for run in machine.runs:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
    stop_all(dict.fromkeys(machine.running(), signal.SIGTERM), grace_s=5, clock=SystemClock())
    assert not machine.running()


def test_a_zombie_and_a_reused_pid_are_not_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ref = ProcessRef.of(child.pid)
    assert ref is not None
    assert ref.alive()
    assert not replace(ref, started=ref.started - 1).alive()
    child.kill()
    eventually(lambda: ") Z " in Path(f"/proc/{ref.pid}/stat").read_text())
    assert not ref.alive()
    child.communicate()
    assert not ref.alive()


def test_every_component_becomes_ready_in_order_and_is_recorded(machine: Machine) -> None:
    up = machine.up().ready()
    assert set(machine.recorded()) == EVERYTHING
    assert set(machine.recorded().values()) == machine.running()
    named = [line.split()[0] for line in up.said().splitlines() if " in " in line]
    assert (set(named[:2]), named[2]) == ({"redis", "postgres"}, "migrate")
    assert named[-1] == "beat"


def open_to_others(root: Path) -> list[str]:
    """Return what other users could access, except the output of `up` that the tests keep there
    themselves.
    """
    found = [p for p in (root, *root.rglob("*")) if not p.is_symlink() and not p.match("up-*.out")]
    return [f"{p} has mode {p.lstat().st_mode:o}" for p in found if p.lstat().st_mode & 0o077]


def test_the_data_directory_is_made_private_to_its_owner(machine: Machine) -> None:
    """Also files created after the start: the broker's files, logs and records."""
    root = machine.data_dir.root
    for folder in (root, root / "redis", root / "local" / "pods", root / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    for file in (
        root / "master.key",
        root / "logs" / "old.log",
        root / "local" / "pods" / "key",
    ):
        file.write_text("")
        file.chmod(0o666)
    elsewhere = root.parent / "elsewhere"
    elsewhere.write_text("")
    elsewhere.chmod(0o644)
    (root / "logs" / "link").symlink_to(elsewhere)
    machine.up().ready()
    with machine.broker() as client:
        client.set("kept", "yes")
    assert list((root / "redis").rglob("*.aof"))
    assert open_to_others(root) == []
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o644


def test_a_directory_writable_by_all_users_is_refused_as_data_directory(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(PoolError, match=r"data_dir .*/shared is a shared directory"):
        DataDir.open(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_the_broker_requires_its_password_and_keeps_its_data(machine: Machine) -> None:
    up = machine.up().ready()
    with machine.broker() as client:
        client.set("kept", "yes")
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("append*")["appendfsync"] == "everysec"
        port = client.connection_pool.connection_kwargs["port"]
    with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert stat.S_IMODE(machine.data_dir.broker_url.stat().st_mode) == 0o600
    up.process.send_signal(signal.SIGTERM)
    assert up.ends() == 0
    assert not machine.data_dir.broker_url.exists()
    machine.up().ready()
    with machine.broker() as client:
        assert client.get("kept") == "yes"
        assert client.connection_pool.connection_kwargs["port"] == port


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_a_killed_component_is_restarted(machine: Machine, name: str) -> None:
    up = machine.up().ready()
    before = machine.recorded()
    before[name].send(signal.SIGKILL)
    up.says(f"{name} was killed by SIGKILL; starting it again in 0.2 s")
    eventually(lambda: machine.recorded().get(name, before[name]) != before[name])
    eventually(lambda: up.said().count(f"{name:<9}ready in") == 2)
    assert {n: ref for n, ref in machine.recorded().items() if n != name} == {
        n: ref for n, ref in before.items() if n != name
    }


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal_and_the_exit_code_is_zero(
    machine: Machine, sig: signal.Signals
) -> None:
    up = machine.up().ready()
    refs = machine.running()
    up.process.send_signal(sig)
    assert up.ends() == 0
    assert not [ref for ref in refs if ref.alive()]
    assert not machine.running()
    assert machine.recorded() == {}
    lines = [
        line.split()[0]
        for line in up.said().splitlines()
        if line.endswith("stopped") or line.startswith("pods")
    ]
    assert lines[0] == "beat"
    assert lines[-3] == "pods"
    assert set(lines[-2:]) == {"redis", "postgres"}


def test_nothing_is_left_when_it_is_stopped_while_starting(machine: Machine) -> None:
    up = machine.up()
    eventually(machine.running)
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0
    assert not machine.running()


def test_nothing_is_left_when_it_is_stopped_while_the_database_is_created(fresh_machine: Machine) -> None:
    machine = fresh_machine
    up = machine.up()
    eventually(lambda: list(machine.data_dir.postgres.glob("draft-*")), every_s=0.01)
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0
    assert not machine.running()
    eventually(lambda: not processes_about(machine.data_dir.postgres))
    assert [found.name for found in machine.data_dir.postgres.iterdir()] == ["data"]


def test_pods_that_cannot_be_deleted_do_not_prevent_a_stop(machine: Machine) -> None:
    up = machine.up("--unclearable").ready()
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0
    assert "removing the pods failed: RuntimeError: the disk is full" in up.said()
    assert not machine.running()


def test_a_second_signal_kills_components_that_do_not_end(machine: Machine) -> None:
    up = machine.up("--stubborn", "fleet").ready()
    up.process.send_signal(signal.SIGINT)
    up.says("acquire  stopped")
    assert machine.recorded()["fleet"].alive()
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0
    assert "pods     cleared, hurried True" in up.said()
    assert not machine.running()


def test_components_survive_a_killed_supervisor_and_the_next_adopts_them(machine: Machine) -> None:
    first = machine.up().ready()
    before = machine.recorded()
    first.process.kill()
    first.ends()
    assert all(ref.alive() for ref in before.values())
    second = machine.up().ready()
    assert machine.recorded() == before
    for name, ref in before.items():
        assert f"{name:<9}already runs, taken over, pid {ref.pid}" in second.said()
    before["fleet"].send(signal.SIGKILL)
    second.says("fleet ended (exit code unknown, because an earlier run started it); starting it again")
    second.process.send_signal(signal.SIGTERM)
    assert second.ends() == 0
    assert not machine.running()


def test_components_of_other_code_are_replaced_and_the_broker_is_kept(machine: Machine) -> None:
    first = machine.up("--code", "1").ready()
    before = machine.recorded()
    first.process.kill()
    first.ends()
    machine.up("--code", "2").ready()
    after = machine.recorded()
    assert after["redis"] == before["redis"]
    assert not [name for name in NAMES if before[name].alive()]
    assert set(after.values()) == machine.running()


def test_a_started_component_that_was_never_recorded_is_found(machine: Machine) -> None:
    first = machine.up().ready()
    before = machine.recorded()
    first.process.kill()
    first.ends()
    machine.data_dir.record.unlink()
    machine.up().ready()
    assert not [name for name, ref in before.items() if ref.alive()]
    assert set(machine.recorded().values()) == machine.running()


def test_a_recorded_pid_of_another_process_is_left_alone(machine: Machine) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        first = machine.up().ready()
        first.process.kill()
        first.ends()
        data = json.loads(machine.data_dir.record.read_text())
        data["components"]["fleet"] |= {"pid": bystander.pid}
        machine.data_dir.record.write_text(json.dumps(data))
        second = machine.up("--code", "2").ready()
        assert bystander.poll() is None
        second.process.send_signal(signal.SIGTERM)
        assert second.ends() == 0
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.communicate()


def test_a_second_up_refuses_and_disturbs_nothing(machine: Machine) -> None:
    first = machine.up().ready()
    before = machine.recorded()
    second = machine.up()
    assert second.ends() == 1
    assert f"pid {first.process.pid}: stop it, or choose another directory" in second.said()
    assert machine.recorded() == before
    assert first.process.poll() is None


def test_a_component_that_cannot_start_shows_its_log_and_everything_ends(machine: Machine) -> None:
    # The result of an earlier run does not affect this one.
    machine.data_dir.ready_file("fleet").touch()
    up = machine.up("--broken", "fleet")
    assert up.ends(within_s=40) == 1
    assert (
        "fleet ended with exit code 7; it failed 5 times before it was ready, stopping everything"
        in up.said()
    )
    assert "  fleet | the reason why it fails" in up.said()
    assert f"complete log: {machine.data_dir.log('fleet')}" in up.said()
    assert not machine.running()


def test_components_hold_no_descriptor_of_the_supervisor(machine: Machine) -> None:
    machine.up().ready()
    for name in NAMES:
        ref = machine.recorded()[name]
        held = {str(fd.readlink()) for fd in Path(f"/proc/{ref.pid}/fd").iterdir()}
        assert held == {"/dev/null", str(machine.data_dir.log(name))}


@pytest.mark.parametrize("hurry", [False, True])
def test_local_pods_are_deleted_when_clearing_returns(tmp_path: Path, hurry: bool) -> None:
    clock = SystemClock()
    driver = LocalDriver(tmp_path, clock=clock, call_timeout_s=5)
    for name in ("w-one", "w-two"):
        driver.create(a_stubborn_pod(name, tmp_path / f"{name}.deaf"))
        eventually((tmp_path / f"{name}.deaf").exists)
    assert pods.clear(driver, clock=clock, hurried=lambda: hurry) == "pods     2 removed"
    assert driver.list().pods == ()
    assert pods.clear(driver, clock=clock, hurried=lambda: hurry) == ""
    driver.close()


def a_stubborn_pod(name: str, deaf: Path) -> PodSpec:
    """A pod that ignores SIGTERM once `deaf` exists."""
    script = f"import signal, pathlib; signal.signal(15, signal.SIG_IGN); pathlib.Path({str(deaf)!r}).touch(); signal.pause()"
    return PodSpec(
        name=name,
        command=(sys.executable, "-c", script),
        profile="default",
        revision="1",
        image="any",
        cpu_millicores=1,
        memory_mib=1,
        port=8080,
        grace_s=600,
        secret="s" * 32,
    )
