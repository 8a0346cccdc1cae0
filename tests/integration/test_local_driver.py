"""The local driver passes the driver contract, and handles failures that only processes and files
have.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pool.core.errors import Transient
from pool.drivers.local import processref as processes
from pool.drivers.local.driver import LocalDriver
from pool.drivers.port import PodPhase, PodRole, Word
from tests.contracts.driver import DriverContract
from tests.support.local_ground import LocalGround, environ_of, open_files_of
from tests.support.waiting import eventually

# The program of another process: when triggered, it creates the pod `w-one` and prints its uid.
CREATOR = """
    import os, signal, sys
    from pathlib import Path
    from pool.drivers.local import process
    from tests.support.local_ground import LocalGround

    ground = LocalGround(Path(sys.argv[1]))
    {before}
    print("here", flush=True)
    sys.stdin.readline()
    print(ground.driver().create(ground.spec()).uid, flush=True)
    {after}
"""
KILL_ITSELF = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[LocalGround]:
    ground = LocalGround(tmp_path / "data")
    try:
        yield ground
    finally:
        ground.clear()


@pytest.fixture
def driver(ground: LocalGround) -> LocalDriver:
    return ground.driver()


class TestLocalDriver(DriverContract):
    """The contract, unchanged."""


def creator(ground: LocalGround, *, before: str = "", after: str = "") -> subprocess.Popen[str]:
    """Another process that creates when a line is written to it."""
    code = textwrap.dedent(CREATOR).format(before=before, after=after)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(ground.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    )


def test_a_pod_outlives_its_killed_creator_and_is_adopted(ground: LocalGround, driver: LocalDriver) -> None:
    with creator(ground, after=KILL_ITSELF) as dead:
        uid = dead.communicate("\n")[0].split()[-1]
    assert dead.returncode == -signal.SIGKILL
    pod = ground.make_ready(driver.create(ground.spec()))
    assert pod.uid == uid
    assert len(ground.processes()) == 1
    driver.delete(pod.name, pod.uid)
    eventually(lambda: driver.read(pod.name) is None)


@pytest.fixture
def half_made(ground: LocalGround) -> None:
    """A pod whose creator was killed between writing the record and starting the process."""
    with creator(ground, before=f"process.launch = lambda *_, **__: {KILL_ITSELF}") as dead:
        dead.communicate("\n")
    assert dead.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("half_made")
def test_a_pod_never_started_is_ended_and_can_be_deleted(ground: LocalGround, driver: LocalDriver) -> None:
    [pod] = driver.list().pods
    assert pod.phase is PodPhase.ENDED
    assert "never started" in pod.trouble
    assert driver.word(pod) is Word.UNUSED
    driver.delete(pod.name, pod.uid)
    assert driver.read(pod.name) is None


@pytest.mark.usefixtures("half_made")
def test_a_pod_never_started_is_completed_by_the_next_create(
    ground: LocalGround, driver: LocalDriver
) -> None:
    [half] = driver.list().pods
    assert ground.make_ready(driver.create(ground.spec())).uid == half.uid


def test_a_creator_killed_right_after_the_start_leaves_one_process(
    ground: LocalGround, driver: LocalDriver
) -> None:
    before = f"start = process.launch; process.launch = lambda *a, **k: (start(*a, **k), {KILL_ITSELF})"
    with creator(ground, before=before) as dead:
        dead.communicate("\n")
    assert dead.returncode == -signal.SIGKILL
    pod = ground.make_ready(driver.create(ground.spec()))
    assert ground.processes() == [ground.identity(pod).pid]


def test_a_process_not_yet_recorded_is_waited_for_and_not_started_twice(
    ground: LocalGround, driver: LocalDriver
) -> None:
    gate = ground.root.parent / "gate"
    os.mkfifo(gate)
    slowly = f"process._LAUNCH = 'read go < {gate}; ' + process._LAUNCH"
    before = (
        f"{slowly}; start = process.launch; process.launch = lambda *a, **k: (start(*a, **k), {KILL_ITSELF})"
    )
    with creator(ground, before=before) as dead, ThreadPoolExecutor(1) as threads:
        # Opened for reading and writing, or opening it would wait for the other side.
        with gate.open("r+b", buffering=0) as opening:
            try:
                dead.communicate("\n")
                unknown = driver.read("w-one")
                assert unknown is not None
                assert unknown.phase is PodPhase.PENDING
                again = threads.submit(driver.create, ground.spec())
            finally:
                opening.write(b"go\n")
                eventually(lambda: ground.run_file(driver.list().pods[0], "proc").exists())
        assert again.result().uid == unknown.uid
    ground.make_ready(unknown)
    assert ground.processes() == [ground.identity(unknown).pid]


def test_processes_that_race_to_create_one_pod_create_one(ground: LocalGround, driver: LocalDriver) -> None:
    racers = [creator(ground) for _ in range(4)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "here\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    uids = {racer.communicate()[0].strip() for racer in racers}
    [pod] = driver.list().pods
    assert uids == {pod.uid}
    ground.make_ready(pod)
    assert len(ground.processes()) == 1


def test_a_reused_pid_is_neither_the_pod_nor_killed(ground: LocalGround, driver: LocalDriver) -> None:
    pod = ground.make_ready(driver.create(ground.spec()))
    ground.make_container_die(pod)
    eventually(lambda: not ground.identity(pod).alive())
    with subprocess.Popen(["sleep", "60"]) as innocent:
        try:
            fields = ground.run_file(pod, "proc").read_text().split(" ")
            ground.run_file(pod, "proc").write_text(
                " ".join([str(innocent.pid), *fields[1:21], "1", *fields[22:]])
            )
            seen = driver.read(pod.name)
            assert seen is not None
            assert seen.phase is PodPhase.ENDED
            driver.delete(pod.name, pod.uid, grace_s=0)
            assert driver.read(pod.name) is None
            assert innocent.poll() is None
        finally:
            innocent.kill()


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(
    ground: LocalGround, driver: LocalDriver
) -> None:
    stubborn = 'trap "" TERM; touch "$WARMPOOL_STATUS_FILE.trapped"; while :; do sleep 0.05; done'
    pod = driver.create(ground.running("sh", "-c", stubborn))
    eventually(ground.run_file(pod, "status.trapped").exists)
    driver.delete(pod.name, pod.uid, grace_s=1)
    seen = driver.read(pod.name)
    assert seen is not None
    assert seen.terminating
    identity = ground.identity(pod)
    eventually(lambda: driver.read(pod.name) is None, within_s=5)
    assert not identity.alive()


def test_a_deletion_begun_by_a_dead_replica_is_continued(ground: LocalGround, driver: LocalDriver) -> None:
    pod = ground.make_ready(driver.create(ground.spec()))
    record_file = ground.root / "pods" / f"{pod.name}.json"
    record = json.loads(record_file.read_text())
    record_file.write_text(json.dumps(record | {"ends_by_s": processes.boot_s() + 300, "told": False}))
    eventually(lambda: ground.driver().list().pods == ())


def test_child_processes_of_a_pods_program_end_with_it(ground: LocalGround, driver: LocalDriver) -> None:
    pod = driver.create(ground.running("sh", "-c", "sleep 600 & sleep 600"))
    eventually(lambda: len(ground.processes()) == 3)
    driver.delete(pod.name, pod.uid)
    eventually(lambda: driver.read(pod.name) is None)
    eventually(lambda: not ground.processes())


def test_the_exit_code_of_a_program_is_recorded(ground: LocalGround, driver: LocalDriver) -> None:
    pod = driver.create(ground.running("sh", "-c", "echo no such licence; exit 7"))

    def ended_with(reader: LocalDriver) -> int | None:
        seen = reader.read(pod.name)
        assert seen is not None
        assert seen.phase is not PodPhase.ENDED or seen.trouble == "ended: no such licence"
        return seen.exit_code

    # First while it is a zombie, seen by a replica that did not start it; then after its creator
    # has reaped it.
    assert eventually(lambda: ended_with(ground.driver())) == 7
    assert ended_with(driver) == 7
    assert ended_with(ground.driver()) == 7
    assert not Path(f"/proc/{ground.identity(pod).pid}").exists()


def test_a_program_that_cannot_be_run_is_an_ended_pod(ground: LocalGround, driver: LocalDriver) -> None:
    pod = driver.create(ground.running("/no/such/program"))
    ended = eventually(lambda: p if (p := driver.read(pod.name)) and p.phase is PodPhase.ENDED else None)
    assert ended is not None
    assert ended.exit_code == 127


def test_a_plain_http_server_is_ready_once_its_readiness_path_answers(
    ground: LocalGround, driver: LocalDriver
) -> None:
    # It answers 503 until a file exists, and counts the probes in another one.
    program = (
        "import os, http.server as h\n"
        "class H(h.BaseHTTPRequestHandler):\n"
        "  def do_GET(self):\n"
        "    open(os.environ['OPEN'] + '.asked', 'a').write('x')\n"
        "    self.send_response(200 if self.path == '/up' and os.path.exists(os.environ['OPEN']) else 503)\n"
        "    self.send_header('Content-Length', '0'); self.end_headers()\n"
        "h.HTTPServer(('127.0.0.1', int(os.environ['PORT'])), H).serve_forever()\n"
    )
    gate = ground.root.parent / "open"
    asked = gate.with_name("open.asked")
    pod = driver.create(
        ground.running(sys.executable, "-c", program, readiness_path="/up", env={"OPEN": str(gate)})
    )

    def probed() -> bool:
        seen = driver.read("w-one")
        assert seen is not None
        assert not seen.ready
        return asked.exists() and asked.stat().st_size >= 3

    # A ready pod is not probed again, so the third probe follows two that did not make it ready.
    eventually(probed)
    gate.touch()
    port = json.loads((ground.root / "pods" / "w-one.json").read_text())["port"]
    assert ground.make_ready(pod).endpoint == f"http://127.0.0.1:{port}"


def test_any_program_is_ready_once_its_status_file_reports_it(
    ground: LocalGround, driver: LocalDriver
) -> None:
    script = 'echo "{\\"uid\\": \\"$WARMPOOL_UID\\", \\"port\\": $PORT, \\"ready\\": true}" > "$WARMPOOL_STATUS_FILE"; exec sleep 600'
    pod = ground.make_ready(driver.create(ground.running("sh", "-c", script, env={"COLOUR": "green"})))
    env = environ_of(ground.identity(pod).pid)
    assert pod.endpoint == f"http://127.0.0.1:{env['PORT']}"
    assert (env["WARMPOOL_WORKER"], env["WARMPOOL_GRACE_S"], env["COLOUR"]) == (pod.name, "300", "green")
    # Nothing listens there: it runs, and cannot be reached.
    assert driver.word(pod) is Word.SILENT


@pytest.mark.parametrize("status", ['{"uid": "another", "port": 1, "ready": true}', '{"uid": "', "[]", "{}"])
def test_a_status_file_of_another_pod_is_ignored(
    ground: LocalGround, driver: LocalDriver, status: str
) -> None:
    pod = driver.create(ground.running("sleep", "600"))
    eventually(lambda: (p := driver.read(pod.name)) and p.phase is PodPhase.RUNNING)
    ground.run_file(pod, "status").write_text(status)
    seen = driver.read(pod.name)
    assert seen is not None
    assert not seen.ready
    assert seen.endpoint == ""


def test_a_pod_inherits_no_open_file_of_its_creator(ground: LocalGround, driver: LocalDriver) -> None:
    reader, writer = os.pipe()
    try:
        os.set_inheritable(reader, True)
        os.set_inheritable(writer, True)
        mine = str(Path(f"/proc/self/fd/{writer}").readlink())
        pod = ground.make_ready(driver.create(ground.spec()))
        files = open_files_of(ground.identity(pod).pid)
    finally:
        os.close(reader)
        os.close(writer)
    assert mine not in files
    assert not [file for file in files if file.endswith(".lock")]
    log = str(ground.run_file(pod, "log"))
    standard = Path(f"/proc/{ground.identity(pod).pid}/fd")
    assert [str((standard / n).readlink()) for n in "012"] == ["/dev/null", log, log]


def test_secrets_are_in_a_private_file_and_nowhere_else(
    ground: LocalGround, driver: LocalDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMPOOL_MASTER_KEY", "the-master-key")
    pod = ground.make_ready(driver.create(ground.spec()))
    pid = ground.identity(pod).pid
    secret = ground.secret_file(pod.name)
    assert secret.read_text() == ground.spec().secret
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    shown = Path(f"/proc/{pid}/cmdline").read_text() + str(environ_of(pid))
    assert ground.spec().secret not in shown
    assert "the-master-key" not in shown


def test_a_placeholder_is_ready_as_soon_as_it_exists(ground: LocalGround, driver: LocalDriver) -> None:
    pod = ground.make_ready(driver.create(ground.spec("p-one", role=PodRole.PLACEHOLDER)))
    assert driver.companions() == ()
    driver.delete(pod.name, pod.uid)
    eventually(lambda: driver.read(pod.name) is None)


def test_a_list_without_anchor_is_not_anchored(ground: LocalGround, driver: LocalDriver) -> None:
    (ground.root / "anchor").unlink()
    assert not driver.list().anchored
    ground.driver()
    assert driver.list().anchored


def test_a_wait_for_a_held_lock_is_bounded(ground: LocalGround, driver: LocalDriver) -> None:
    pod = driver.create(ground.running("sleep", "600"))
    eventually(lambda: (p := driver.read(pod.name)) and p.phase is PodPhase.RUNNING)
    with subprocess.Popen(["flock", str(ground.root / "pods" / "w-one.lock"), "sleep", "600"]) as holder:
        try:
            eventually(lambda: _is_locked(ground))
            with pytest.raises(Transient):
                driver.delete(pod.name, pod.uid)
        finally:
            _kill_tree(holder)
    seen = driver.read(pod.name)
    assert seen is not None
    assert not seen.terminating


def test_a_removed_directory_is_not_an_empty_one(ground: LocalGround, driver: LocalDriver) -> None:
    with ground.unreachable():
        for reading in (driver.list, driver.companions):
            with pytest.raises(Transient):
                reading()


def test_the_age_of_a_pod_grows(ground: LocalGround, driver: LocalDriver) -> None:
    young = driver.create(ground.spec())
    assert 0 <= young.age_s < 5
    eventually(lambda: (p := ground.driver().read(young.name)) and p.age_s > young.age_s)


def test_a_pod_of_an_earlier_boot_is_ended_and_old(ground: LocalGround, driver: LocalDriver) -> None:
    pod = ground.make_ready(driver.create(ground.spec()))
    ground.make_container_die(pod)
    record_file = ground.root / "pods" / f"{pod.name}.json"
    record = json.loads(record_file.read_text())
    record_file.write_text(json.dumps(record | {"boot_id": "an earlier one", "created_s": 1e9}))
    seen = driver.create(ground.spec())
    assert (seen.phase, seen.trouble) == (PodPhase.ENDED, "the machine was restarted")
    assert seen.age_s > 0
    driver.delete(pod.name, pod.uid)
    assert driver.read(pod.name) is None


def _is_locked(ground: LocalGround) -> bool:
    return subprocess.run(["flock", "-n", str(ground.root / "pods" / "w-one.lock"), "true"]).returncode != 0


def _kill_tree(parent: subprocess.Popen[bytes]) -> None:
    for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    parent.kill()
