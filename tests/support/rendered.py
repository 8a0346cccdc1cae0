"""Run containers of the rendered chart as processes of this machine, with their rendered command
lines, resolved environment, and probes evaluated as by the kubelet. Only folders and ports differ.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path

from pool.core.settings import PoolSettings
from pool.ops.cli.app import COMMANDS
from pool.ops.up.ports import free_port
from tests.support.helm import ROOT, ChartProbe, Mounts, Object, environment, in_image
from tests.support.waiting import eventually

START_LIMIT_S = 110.0
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartGround:
    """Replacements for the cluster: Secrets by name, the mounted configuration, and variables for
    this machine.
    """

    folder: Path
    secrets: Mapping[str, Mapping[str, str]]
    over: Mapping[str, str] = field(default_factory=dict)


class Running:
    """One container of the chart, running."""

    def __init__(self, name: str, container: Object, ground: ChartGround) -> None:
        self.name = name
        self._container = container
        home = ground.folder / name
        mounts = Mounts(
            folders={
                "/run/warmpool": home / "run",
                "/tmp": home / "tmp",
                "/etc/warmpool": ground.folder / "config",
            }
        )
        for inner in ("run", "tmp"):
            (home / inner).mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.log_file = home / "log"
        self._words = [mounts.local(word) for word in with_port(container["command"], self.port)]
        given = environment(container, ground.secrets)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("WARMPOOL_", "FLOWER_"))},
            **{k: mounts.local(v) for k, v in given.items() if not k.startswith("WARMPOOL_METRICS_")},
            **metrics_of(given),
            **ground.over,
        }
        probes = {kind: container[kind] for kind in ("startupProbe", "livenessProbe", "readinessProbe")}
        self.startup, self.liveness, self.readiness = (
            ChartProbe(spec=spec, mounts=mounts, port=self.port) for spec in probes.values()
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                in_image(self._words), cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def wait_started(self) -> None:
        self._wait(self.startup)

    def wait_ready(self) -> None:
        self._wait(self.readiness)

    def send(self, sig: signal.Signals) -> None:
        assert self.process is not None
        if sig is signal.SIGTERM:
            os.kill(self.process.pid, sig)
        else:
            # The component is a child of the container's first process.
            os.killpg(self.process.pid, sig)

    def ends(self) -> int:
        assert self.process is not None
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        if self.alive():
            self.send(signal.SIGKILL)
            self.ends()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def _wait(self, probe: ChartProbe) -> None:
        eventually(lambda: probe.look() or not self.alive(), within_s=START_LIMIT_S, every_s=LOOK_EVERY_S)
        assert self.alive(), f"{self.name} ended with {self.ends()}:\n{self.log()[-3000:]}"


class Kubelet:
    """Evaluates due liveness probes of containers, and records which ones a kubelet would restart."""

    def __init__(self, containers: list[Running]) -> None:
        self.would_restart: dict[str, str] = {}
        self._containers = containers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def looks(self) -> int:
        return min(container.liveness.looks for container in self._containers)

    @contextmanager
    def looking(self) -> Iterator[Kubelet]:
        self._thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            for container in self._containers:
                container.liveness.look_if_due()
                if container.liveness.verdict:
                    self.would_restart.setdefault(container.name, container.liveness.complaints[-1])
                elif not container.alive():
                    self.would_restart.setdefault(container.name, f"it ended with {container.ends()}")


def is_there(container: Object) -> bool:
    """Return whether the command has what the container runs."""
    return container["command"][2] in COMMANDS


def with_port(words: list[str], port: int) -> list[str]:
    """Return a command line with a port that is free here."""
    return [
        str(port) if before == "--port" else word for before, word in zip(["", *words], words, strict=False)
    ]


def metrics_of(given: Mapping[str, str]) -> dict[str, str]:
    """Processes of this machine share its ports, unlike pods."""
    if "WARMPOOL_METRICS_PORT" not in given or "metrics_port" not in {f.name for f in fields(PoolSettings)}:
        return {}
    return {"WARMPOOL_METRICS_HOST": "127.0.0.1", "WARMPOOL_METRICS_PORT": str(free_port())}
