"""The test ground of the local driver: actions of tests on its processes and files that bypass the
driver, and a check that nothing is left.
"""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from pool.core import names, tokens
from pool.core.clock import SystemClock
from pool.core.settings import Profile
from pool.drivers.local import processref as processes
from pool.drivers.local.driver import LocalDriver
from pool.drivers.port import Pod, PodRole, PodSpec
from tests.support.waiting import eventually

MASTER_KEY = b"a master key that only tests know"
CALL_TIMEOUT_S = 3.0


class LocalGround:
    """One directory of local pods."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._busy: dict[str, dict[str, str]] = {}

    def driver(self) -> LocalDriver:
        return LocalDriver(self.root, clock=SystemClock(), call_timeout_s=CALL_TIMEOUT_S)

    def driver_of(self, profiles: Mapping[str, Profile]) -> LocalDriver:
        """The spec alone defines a process; profiles add nothing."""
        return self.driver()

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the configuration tables of a deployment whose pods are here; its data directory
        is the parent.
        """
        return {"pool": {"driver": "local"}}

    def unstartable(self, profile: Profile) -> Profile:
        return replace(profile, command=("/there/is/no/such/program",))

    def spec(self, name: str = "w-one", *, role: PodRole = PodRole.WORKER) -> PodSpec:
        secret = tokens.worker_key(MASTER_KEY, name) if role is PodRole.WORKER else ""
        return PodSpec(
            name=name, profile="default", revision="rev-1", image="image:1", cpu_millicores=100,
            memory_mib=64, port=8080, grace_s=300, secret=secret, role=role,
        )  # fmt: skip

    def running(self, *argv: str, name: str = "w-one", **changes: Any) -> PodSpec:
        """Create a pod with another program than the reference worker."""
        return replace(self.spec(name), command=argv, **changes)

    def make_ready(self, pod: Pod) -> Pod:
        driver = self.driver()
        ready = eventually(lambda: p if (p := driver.read(pod.name)) and p.usable else None)
        assert ready is not None
        return ready

    def make_busy(self, pod: Pod) -> None:
        self._busy[pod.uid] = auth(pod.name)
        assert call(pod, "POST", "/sessions", auth(pod.name))[0] == 200

    def make_unused(self, pod: Pod) -> None:
        held = self._busy.pop(pod.uid, None)
        if held is not None:
            assert call(pod, "DELETE", "/sessions", held)[0] == 200

    def make_container_die(self, pod: Pod) -> None:
        self.identity(pod).send(signal.SIGKILL)

    def make_unaskable(self, pod: Pod) -> None:
        self.identity(pod).send(signal.SIGSTOP)

    def lose_companions(self, name: str) -> None:
        self.secret_file(name).unlink()

    def leave_companions(self, name: str) -> None:
        self.secret_file(name).write_text("left")

    def grace_left_s(self, pod: Pod) -> float:
        record = json.loads((self.root / "pods" / f"{pod.name}.json").read_text())
        return float(record["ends_by_s"]) - processes.boot_s()

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        away = self.root / "pods.away"
        (self.root / "pods").rename(away)
        try:
            yield
        finally:
            away.rename(self.root / "pods")

    def secret_file(self, name: str) -> Path:
        return self.root / "pods" / f"{name}.secret"

    def run_file(self, pod: Pod, name: str) -> Path:
        return self.root / "run" / f"{pod.name}.{pod.uid}" / name

    def identity(self, pod: Pod) -> processes.ProcessRef:
        identity = eventually(lambda: processes.ProcessRef.in_stat(_text(self.run_file(pod, "proc"))))
        assert identity is not None
        return identity

    def processes(self) -> list[int]:
        """Return live processes that belong to pods of this ground."""
        return [
            int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and self._owns(entry)
        ]

    def clear(self) -> None:
        """End everything, and check it."""
        driver = self.driver()
        for pod in driver.list().pods:
            driver.delete(pod.name, pod.uid, grace_s=0)
        eventually(lambda: driver.list().pods == ())
        eventually(lambda: not self.processes())
        assert sorted(p.name for p in self.root.rglob("*")) == ["anchor", "pods", "run"]

    def _owns(self, entry: Path) -> bool:
        try:
            identity = processes.ProcessRef.in_stat((entry / "stat").read_text())
            env = (entry / "environ").read_bytes()
        except OSError:
            return False
        ours = f"{names.ENV_STATUS_FILE}={self.root}/".encode() in env
        return ours and identity is not None and identity.alive()


def auth(worker: str, claim_id: str = "c-1", epoch: int = 1) -> dict[str, str]:
    """Return the headers of a claim on a worker."""
    key = tokens.worker_key(MASTER_KEY, worker)
    return tokens.headers(claim_id, epoch, tokens.token(key, claim_id, epoch))


class Reachable(Protocol):
    """A pod, or a worker that a client holds."""

    @property
    def endpoint(self) -> str: ...


def call(
    to: Reachable, method: str, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
) -> tuple[int, Any]:
    """Make one request to a worker; return status and JSON."""
    connection = http.client.HTTPConnection(urlsplit(to.endpoint).netloc, timeout=10)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        response = connection.getresponse()
        text = response.read()
        return response.status, json.loads(text) if text else None
    finally:
        connection.close()


def environ_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def open_files_of(pid: int) -> list[str]:
    """Return the targets of a process's file descriptors."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
