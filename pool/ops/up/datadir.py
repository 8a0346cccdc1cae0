"""The data directory of `up`, used by one supervisor at a time.

    run/up.lock         locked (flock) by the supervisor; contains its pid
    run/processes.json  every running component: pid, start time, fingerprint
    run/NAME.ready      touched by a component when it is ready, and every few seconds after
    run/NAME.port       a port, chosen once and kept
    run/NAME.password   password of a web page, created once and kept
    run/broker.url      URL of the broker, while it runs
    run/database.url    URL of the database, while it runs
    run/metrics.json    metrics address of each component, for `file_sd_configs` of Prometheus
    logs/NAME.log       a component's output
    redis/              the embedded Redis: its configuration and its data
    postgres/           the embedded Postgres: its data and its socket
    local/              the local driver's pods

Only its owner may read it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pool.core.errors import PoolError
from pool.core.ids import RandomIds
from pool.drivers.local.processref import ProcessRef, boot_id
from pool.ops.up.ports import free_port, is_free
from pool.ops.up.privacy import make_private


class AlreadyRunning(PoolError):
    """Another supervisor uses this data directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A running component started by a supervisor, and its fingerprint."""

    ref: ProcessRef
    fingerprint: str


@dataclass(frozen=True, slots=True)
class DataDir:
    """The paths in one data directory."""

    root: Path

    @classmethod
    def open(cls, path: str | Path) -> DataDir:
        """Create missing directories, and remove the permissions of other users."""
        self = cls(Path(path).absolute())
        for folder in (self.root, self.run, self.logs, self.redis, self.postgres):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_private(self.root)
        return self

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def redis(self) -> Path:
        return self.root / "redis"

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def local(self) -> Path:
        return self.root / "local"

    @property
    def broker_url(self) -> Path:
        return self.run / "broker.url"

    @property
    def database_url(self) -> Path:
        return self.run / "database.url"

    @property
    def metrics(self) -> Path:
        return self.run / "metrics.json"

    @property
    def record(self) -> Path:
        return self.run / "processes.json"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def ready_file(self, name: str) -> Path:
        return self.run / f"{name}.ready"

    def lock(self) -> int:
        """Lock the data directory until this process ends, and return the descriptor. Children do not inherit
        it."""
        fd = os.open(self.run / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(fd, 32, 0).decode().strip() or "unknown"
            os.close(fd)
            raise AlreadyRunning(
                f"`warmpool up` is already running with data directory {self.root}, pid {holder}: "
                "stop it, or choose another directory with --data-dir"
            ) from exc
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        return fd

    def read_record(self) -> dict[str, Recorded]:
        """Return the recorded components that still run; empty if the record is unreadable or from an earlier
        boot."""
        try:
            data = json.loads(self.record.read_text())
            entries = data["components"] if data["boot"] == boot_id() else {}
            found = {
                name: Recorded(
                    ref=ProcessRef(pid=int(entry["pid"]), started=int(entry["started"])),
                    fingerprint=str(entry["fingerprint"]),
                )
                for name, entry in entries.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}
        return {name: entry for name, entry in found.items() if entry.ref.alive()}

    def write_record(self, components: Mapping[str, Recorded]) -> None:
        """Replace the record."""
        entries = {
            name: {"pid": entry.ref.pid, "started": entry.ref.started, "fingerprint": entry.fingerprint}
            for name, entry in components.items()
        }
        write_private(self.record, json.dumps({"boot": boot_id(), "components": entries}, indent=2) + "\n")

    def port(self, name: str, *, running: bool) -> int:
        """Return the port kept for `name`. If its component does not run and the port is in use, choose a new
        one."""
        file = self.run / f"{name}.port"
        try:
            kept = int(file.read_text())
        except (OSError, ValueError):
            kept = 0
        if kept and (running or is_free(kept)):
            return kept
        chosen = free_port()
        write_private(file, str(chosen))
        return chosen

    def password(self, name: str) -> str:
        """Return the password of a web page, created once and kept."""
        file = self.password_file(name)
        if not file.exists():
            write_private(file, RandomIds().token())
        return file.read_text().strip()

    def password_file(self, name: str) -> Path:
        return self.run / f"{name}.password"


def write_scrape_targets(data_dir: DataDir, ports: Mapping[str, int]) -> None:
    """Write the metrics addresses of the components for Prometheus."""
    targets = [
        {"targets": [f"127.0.0.1:{port}"], "labels": {"component": name}} for name, port in ports.items()
    ]
    write_private(data_dir.metrics, json.dumps(targets, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable by its owner only."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
