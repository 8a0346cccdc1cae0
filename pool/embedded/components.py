"""What `up` runs, as data: in which order, from which command line, and how each says that it is ready."""

from __future__ import annotations

import hashlib
import http.client
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pool
from pool.embedded import redis
from pool.embedded.datadir import DataDir
from pool.settings import Settings

READY_FILE_VARIABLE = "WARMPOOL_RUN_READY_FILE"
METRICS_PORT_VARIABLE = "WARMPOOL_METRICS_PORT"
METRICS_HOST_VARIABLE = "WARMPOOL_METRICS_HOST"
WORKERS = ("acquire", "fleet", "bind", "passes")
# Who serves metrics, each on a port of its own.
MEASURED = (*WORKERS, "beat", "exporter")
# Pages, and where each says that it is well.
HEALTH_PAGES = {"flower": "/healthcheck", "board": "/healthz", "exporter": "/-/healthy"}
_HTTP_TIMEOUT_S = 1.0
# A machine so busy that a start takes minutes is not helped by starting again.
_START_LIMIT_S = 180.0
_MIGRATION_LIMIT_S = 600.0


class Stage(StrEnum):
    """When a component starts. A stage begins once the one before it is ready; stopping goes the other way round."""

    BROKER = "broker"
    MIGRATION = "migration"
    WORKERS = "workers"
    DRIVING = "driving"

    @property
    def rank(self) -> int:
        return list(Stage).index(self)


class Kind(StrEnum):
    """Whether it runs for ever or once, to a clean end."""

    SERVICE = "service"
    ONE_SHOT = "one_shot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyFile:
    """Ready when it has touched its file; it goes on touching it while it is well."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPing:
    """Ready when the server at this URL answers."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPage:
    """Ready when this page on loopback answers 200."""

    port: int
    path: str = "/healthcheck"


Readiness = ReadyFile | RedisPing | HealthPage


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file that says where a component is, there only while it runs."""

    path: Path
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One process of the pool. A running one is adopted only if its fingerprint is still right."""

    name: str
    stage: Stage
    argv: tuple[str, ...]
    readiness: Readiness
    fingerprint: str
    kind: Kind = Kind.SERVICE
    env: Mapping[str, str] = field(default_factory=dict)
    published: Published | None = None
    ready_limit_s: float = _START_LIMIT_S
    silence_limit_s: float = 60.0
    stop_grace_s: float = 10.0


def embedded(data_dir: DataDir, broker: redis.Broker) -> Component:
    """The embedded Redis. What it runs from does not depend on our code, so that an upgrade adopts it."""
    return Component(
        name="redis",
        stage=Stage.BROKER,
        argv=broker.argv,
        readiness=RedisPing(url=broker.url),
        fingerprint=digest(*broker.argv, broker.configuration),
        published=Published(path=data_dir.broker_url, text=broker.url),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the pages are (None: not run), and where each component's metrics are."""

    flower: int | None = None
    board: int | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int | None:
        return {"flower": self.flower, "board": self.board, "exporter": self.metrics.get("exporter")}.get(
            name
        )


def ours(data_dir: DataDir, settings: Settings, env: Mapping[str, str], *, ports: Ports) -> list[Component]:
    """Every component that is a `warmpool` command: the migration, the workers, beat, the exporter and, with a port each, the board and Flower."""
    version = digest(sys.executable, repr(settings), code_version())

    def one(
        name: str, stage: Stage, *arguments: str, kind: Kind = Kind.SERVICE, grace_s: float = 10.0
    ) -> Component:
        ready = data_dir.ready_file(name)
        return Component(
            name=name,
            stage=stage,
            kind=kind,
            argv=(*interpreter(), "-m", "pool.cli", *arguments),
            env={
                **env,
                READY_FILE_VARIABLE: str(ready),
                METRICS_PORT_VARIABLE: str(ports.metrics.get(name, 0)),
                METRICS_HOST_VARIABLE: "127.0.0.1",
                **_password(data_dir, name),
            },
            readiness=HealthPage(port=port, path=HEALTH_PAGES[name])
            if (port := ports.of(name))
            else ReadyFile(path=ready),
            fingerprint=digest(version, *arguments),
            stop_grace_s=grace_s,
            ready_limit_s=_MIGRATION_LIMIT_S if kind is Kind.ONE_SHOT else _START_LIMIT_S,
        )

    # A worker told to end finishes what it holds, which may be an activation.
    held_s = settings.pool.activation_budget_s + settings.pool.call_timeout_s
    components = [one("migrate", Stage.MIGRATION, "migrate", kind=Kind.ONE_SHOT)]
    components += [one(name, Stage.WORKERS, "worker", name, grace_s=held_s) for name in WORKERS]
    components.append(one("beat", Stage.DRIVING, "beat"))
    components.append(one("exporter", Stage.DRIVING, "exporter"))
    if ports.flower:
        components.append(one("flower", Stage.DRIVING, "flower", "--port", str(ports.flower)))
    if ports.board:
        flower = ["--flower-url", f"http://127.0.0.1:{ports.flower}"] if ports.flower else []
        components.append(one("board", Stage.DRIVING, "board", "--port", str(ports.board), *flower))
    return components


def _password(data_dir: DataDir, name: str) -> dict[str, str]:
    """A page's password goes by its environment, which only its owner can read."""
    return {f"WARMPOOL_RUN_{name.upper()}_PASSWORD": data_dir.password(name)} if name in HEALTH_PAGES else {}


def sign_of_life(readiness: Readiness) -> object | None:
    """What shows that a component is well: None for nothing, else a value that changes as long as it stays well."""
    match readiness:
        case ReadyFile(path=path):
            try:
                return path.stat().st_mtime_ns
            except OSError:
                return None
        case RedisPing(url=url):
            return object() if redis.answers(url) else None
        case HealthPage(port=port, path=page):
            return object() if _answers(port, page) else None


def code_version() -> str:
    """Changes with every edit of our source, so that no component goes on running code that is no longer there."""
    root = Path(pool.__file__).parent
    sources = [
        *root.rglob("*.py"),
        *(root / "board").rglob("*.*"),
        *(root.parent / "tasks").rglob("*.py"),
        root.parent / "beat_schedule.py",
    ]
    stats = [(str(file), file.stat()) for file in sorted(sources) if file.exists()]
    return digest(*(f"{file} {stat.st_mtime_ns} {stat.st_size}" for file, stat in stats))


def interpreter() -> tuple[str, ...]:
    """This Python. Away from our own source tree, a folder named `pool` where the user stands must not be imported."""
    at_home = Path(pool.__file__).parents[1] == Path.cwd()
    return (sys.executable,) if at_home else (sys.executable, "-P")


def digest(*parts: str) -> str:
    """A short name for these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _answers(port: int, page: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_HTTP_TIMEOUT_S)
    try:
        connection.request("GET", page)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
