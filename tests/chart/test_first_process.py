"""Process 1 of the containers: it ends on SIGTERM at any moment, and removes the probe files of the
container before it. Each test runs the real script, the components as the chart runs them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.support.helm import ROOT, Object, in_image, named, of_kind, pod_templates, rendered
from tests.support.pid_namespace import FirstProcess, children, require_namespaces
from tests.support.rendered import ChartGround, Running
from tests.support.waiting import eventually

INIT = str(ROOT / "deploy" / "warmpool-init")
SLEEPER = ["sleep", "600"]
NOWHERE = {
    "broker-url": "redis://127.0.0.1:1/0",
    "producer-broker-url": "redis://127.0.0.1:1/0",
    "flower-broker-url": "redis://127.0.0.1:1/0",
    "database-url": "postgresql://warmpool@127.0.0.1:1/warmpool",
    "master-key": 48 * "k",
    "board-password": "board-password",
    "flower-basic-auth": "admin:flower-password",
}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
# A signal that was dropped would be answered after the grace period: a minute, or ten for a worker.
SOON_S = 20.0


def containers() -> dict[str, Object]:
    """Return one of each container of our image, by component, and the reference worker."""
    objects, found = rendered("trial"), {}
    for name, pod in pod_templates(objects):
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
            if container["image"].startswith("warmpool:"):
                found[container["name"]] = container
        assert found, name
    config = tomllib.loads(named(objects, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"])
    found["worker"] = {"name": "worker", "command": config["profiles"]["default"]["command"]}
    return found


def running(name: str, container: Object, folder: Path) -> Running:
    """Return a container whose Redis and Postgres do not exist."""
    config = folder / "config"
    config.mkdir()
    toml = named(rendered("trial"), "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"]
    (config / "warmpool.toml").write_text(toml)
    over = {"WARMPOOL_DRIVER": "local", "WARMPOOL_DATA_DIR": str(folder), "WARMPOOL_PORT": "0"}
    ground = ChartGround(folder=folder, secrets={"wp-warmpool": NOWHERE}, over=over)
    probes = {kind: {"exec": {"command": ["true"]}} for kind in PROBES}
    return Running(name, {**probes, **container}, ground)


def test_a_process_without_a_handler_ends_only_behind_the_init_script(tmp_path: Path) -> None:
    require_namespaces()
    with FirstProcess(SLEEPER, {}, tmp_path / "bare") as bare:
        bare.terminate()
        with FirstProcess([INIT, *SLEEPER], {}, tmp_path / "log") as init:
            init.terminate()
            assert init.exit_code(within_s=SOON_S) == 143
        assert children(bare.pid) == []
        assert Path(f"/proc/{bare.pid}").exists(), "the kernel drops the signal"


def test_a_second_signal_does_not_end_a_process_that_finishes_its_work(tmp_path: Path) -> None:
    require_namespaces()
    done, told = tmp_path / "done", tmp_path / "told"
    slow = f"trap 'touch {told}' TERM; while [ ! -e {done} ]; do sleep 0.05; done; exit 7"
    with FirstProcess([INIT, "sh", "-c", slow], {}, tmp_path / "log") as init:
        eventually(lambda: children(init.pid) and children(children(init.pid)[0]))
        for _ in range(2):
            init.terminate()
            eventually(told.exists)
            told.unlink()
        done.touch()
        assert init.exit_code(within_s=SOON_S) == 7


@pytest.mark.parametrize("name", sorted(containers()))
def test_every_container_ends_when_it_is_stopped_right_after_its_start(name: str, tmp_path: Path) -> None:
    require_namespaces()
    container = containers()[name]
    part = running(name, container, tmp_path)
    with FirstProcess(in_image(container["command"]), part.env, tmp_path / "log") as first:
        first.terminate()
        assert first.exit_code(within_s=SOON_S) in (0, 143), first.log()


def test_a_wait_for_the_migration_ends_when_it_is_stopped(tmp_path: Path) -> None:
    require_namespaces()
    container = containers()["wait-for-migrations"]
    part = running("wait", container, tmp_path)
    with FirstProcess(in_image(container["command"]), part.env, tmp_path / "log") as first:
        eventually(lambda: "waiting:" in first.log(), within_s=60)
        first.terminate()
        assert first.exit_code(within_s=SOON_S) == 143


@pytest.mark.parametrize("name", ["acquire", "beat"])
def test_probe_files_of_the_container_before_do_not_make_a_new_one_ready(name: str, tmp_path: Path) -> None:
    require_namespaces()
    (found,) = (d for d in of_kind(rendered("trial"), "Deployment") if d["metadata"]["name"].endswith(name))
    container = found["spec"]["template"]["spec"]["containers"][0]
    part = running(name, container, tmp_path)
    for file in ("ready", "alive"):
        (tmp_path / name / "run" / file).touch()
    assert part.readiness.look()
    with FirstProcess(in_image(container["command"]), part.env, tmp_path / "log"):
        assert not part.readiness.look()
