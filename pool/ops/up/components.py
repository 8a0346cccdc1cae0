"""The components that `up` runs, as data: their order, command lines and readiness checks."""

from __future__ import annotations

import hashlib
import http.client
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pool
from pool.config.environment import variable
from pool.core.names import ENV_READY_FILE, ENV_RUN_PREFIX, QUEUES
from pool.core.settings import Settings
from pool.ops.interpreter import interpreter
from pool.ops.up import postgres, redis
from pool.ops.up.account import Account
from pool.ops.up.datadir import DataDir

METRICS_PORT_VARIABLE = variable("metrics_port")
METRICS_HOST_VARIABLE = variable("metrics_host")
# Components that serve metrics, each on its own port.
MEASURED = (*QUEUES, "beat", "exporter")
# Components with a web page, and the path of their health check.
HEALTH_PAGES = {"flower": "/healthcheck", "board": "/healthz", "exporter": "/-/healthy"}
_HTTP_TIMEOUT_S = 1.0
# Long, because on a busy machine a start may take minutes, and starting again would not help.
_START_LIMIT_S = 180.0
_MIGRATION_LIMIT_S = 600.0


class StartStage(StrEnum):
    """When a component starts. A stage starts once the stage before it is ready; stopping is in reverse
    order."""

    SERVERS = "servers"
    MIGRATION = "migration"
    WORKERS = "workers"
    DRIVING = "driving"

    @property
    def rank(self) -> int:
        return list(StartStage).index(self)


class ComponentKind(StrEnum):
    """Whether a component runs until stopped, or once until it succeeds."""

    SERVICE = "service"
    ONE_SHOT = "one_shot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyFile:
    """Ready when the component has touched its file; it keeps touching it while it is healthy."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPing:
    """Ready when the server at this URL answers."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPing:
    """Ready when this server accepts connections."""

    place: postgres.ClusterFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPage:
    """Ready when this page on loopback returns 200."""

    port: int
    path: str = "/healthcheck"


Readiness = ReadyFile | RedisPing | PostgresPing | HealthPage


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A file with the URL of a component; it exists only while the component runs."""

    path: Path
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One process of the pool. A running process is taken over only if its fingerprint is unchanged."""

    name: str
    stage: StartStage
    argv: tuple[str, ...]
    readiness: Readiness
    fingerprint: str
    kind: ComponentKind = ComponentKind.SERVICE
    env: Mapping[str, str] = field(default_factory=dict)
    published: Published | None = None
    # Its working directory and account, if not those of the supervisor.
    folder: Path | None = None
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    ready_limit_s: float = _START_LIMIT_S
    silence_limit_s: float = 60.0
    stop_grace_s: float = 10.0


def embedded_redis(data_dir: DataDir, broker: redis.EmbeddedBroker) -> Component:
    """Return the embedded Redis. Its fingerprint does not depend on our code, so an upgrade takes it over."""
    return Component(
        name="redis",
        stage=StartStage.SERVERS,
        argv=broker.argv,
        readiness=RedisPing(url=broker.url),
        fingerprint=digest(*broker.argv, broker.configuration),
        published=Published(path=data_dir.broker_url, text=broker.url),
    )


def embedded_postgres(data_dir: DataDir, database: postgres.Database) -> Component:
    """Return the embedded Postgres. Its fingerprint does not depend on our code, so an upgrade
    takes it over.
    """
    return Component(
        name="postgres",
        stage=StartStage.SERVERS,
        argv=database.argv,
        env={"LC_ALL": "C", "TZ": "UTC"},
        readiness=PostgresPing(place=database.place),
        fingerprint=digest(*database.argv, str(database.folder)),
        published=Published(path=data_dir.database_url, text=database.url),
        folder=database.folder,
        account=database.account,
        # Fast shutdown. With SIGTERM it would wait for the last client to disconnect.
        stop_signal=signal.SIGINT,
        stop_grace_s=30.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of the web pages (None: not run) and of each component's metrics."""

    flower: int | None = None
    board: int | None = None
    metrics: Mapping[str, int] = field(default_factory=dict)

    def of(self, name: str) -> int | None:
        return {"flower": self.flower, "board": self.board, "exporter": self.metrics.get("exporter")}.get(
            name
        )


def ours(
    data_dir: DataDir, settings: Settings, env: Mapping[str, str], *, ports: Ports, database_url: str
) -> list[Component]:
    """Return every component that is a `warmpool` command: migration, workers, beat, exporter, and,
    if they have a port, the board and Flower."""
    version = digest(sys.executable, repr(settings), code_version(), database_url)

    def one(
        name: str,
        stage: StartStage,
        *arguments: str,
        kind: ComponentKind = ComponentKind.SERVICE,
        grace_s: float = 10.0,
    ) -> Component:
        ready = data_dir.ready_file(name)
        return Component(
            name=name,
            stage=stage,
            kind=kind,
            argv=(*interpreter(), "-m", "pool.ops.cli", *arguments),
            env={
                **env,
                ENV_READY_FILE: str(ready),
                METRICS_PORT_VARIABLE: str(ports.metrics.get(name, 0)),
                METRICS_HOST_VARIABLE: "127.0.0.1",
                **_password(data_dir, name),
            },
            readiness=HealthPage(port=port, path=HEALTH_PAGES[name])
            if (port := ports.of(name))
            else ReadyFile(path=ready),
            fingerprint=digest(version, *arguments),
            stop_grace_s=grace_s,
            ready_limit_s=_MIGRATION_LIMIT_S if kind is ComponentKind.ONE_SHOT else _START_LIMIT_S,
        )

    # A worker that is stopped finishes its tasks first, which may include an activation.
    held_s = settings.pool.activation_budget_s + settings.pool.call_timeout_s
    components = [one("migrate", StartStage.MIGRATION, "migrate", kind=ComponentKind.ONE_SHOT)]
    components += [one(name, StartStage.WORKERS, "worker", name, grace_s=held_s) for name in QUEUES]
    components.append(one("beat", StartStage.DRIVING, "beat"))
    components.append(one("exporter", StartStage.DRIVING, "exporter"))
    if ports.flower:
        components.append(one("flower", StartStage.DRIVING, "flower", "--port", str(ports.flower)))
    if ports.board:
        flower = ["--flower-url", f"http://127.0.0.1:{ports.flower}"] if ports.flower else []
        components.append(one("board", StartStage.DRIVING, "board", "--port", str(ports.board), *flower))
    return components


def _password(data_dir: DataDir, name: str) -> dict[str, str]:
    """Return the variable with a page's password; only the owner of the process can read its environment."""
    return (
        {f"{ENV_RUN_PREFIX}{name.upper()}_PASSWORD": data_dir.password(name)} if name in HEALTH_PAGES else {}
    )


def sign_of_life(readiness: Readiness) -> object | None:
    """Return a value that changes while the component is healthy; None if there is no sign of health."""
    match readiness:
        case ReadyFile(path=path):
            try:
                return path.stat().st_mtime_ns
            except OSError:
                return None
        case RedisPing(url=url):
            return object() if redis.answers(url) else None
        case PostgresPing(place=place):
            return object() if postgres.answers(place) else None
        case HealthPage(port=port, path=page):
            return object() if _answers(port, page) else None


def code_version() -> str:
    """Return a digest that changes with every edit of our source, so that no component keeps running old
    code."""
    root = Path(pool.__file__).parent
    sources = [
        *root.rglob("*.*"),
        *(root.parent / "tasks").rglob("*.py"),
        root.parent / "beat_schedule.py",
    ]
    files = [file for file in sources if file.is_file() and file.suffix != ".pyc"]
    stats = [(str(file), file.stat()) for file in sorted(files)]
    return digest(*(f"{file} {stat.st_mtime_ns} {stat.st_size}" for file, stat in stats))


def digest(*parts: str) -> str:
    """Return a short digest of these texts."""
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
