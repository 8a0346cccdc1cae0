"""The image that the Dockerfile builds: what is in it, and that every component of the chart starts
from it with a read-only root.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.helm import environment, named, of_kind, rendered, secret_values
from tests.support.node_image import USER, BuiltImage, mounts_below
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

OBJECTS = rendered("trial")
COMPONENTS = sorted(
    d["metadata"]["name"].removeprefix("wp-warmpool-") for d in of_kind(OBJECTS, "Deployment")
)
MOST_MIB = 350
START_S = 60.0

pytestmark = pytest.mark.timeout(300)


class ImageGround:
    """What containers of the image need: the rendered configuration, Redis and Postgres."""

    def __init__(self, image: BuiltImage, folder: Path, redis: RedisServer, database_url: str) -> None:
        self.image = image
        self.folder = folder
        folder.chmod(0o755)
        toml = named(OBJECTS, "ConfigMap", "wp-warmpool")["data"]["warmpool.toml"]
        (folder / "config").mkdir()
        (folder / "config" / "warmpool.toml").write_text(toml)
        secret = secret_values(named(OBJECTS, "Secret", "wp-warmpool"))
        urls = {key: redis.url for key in secret if key.endswith("broker-url")}
        self._secrets = {"wp-warmpool": {**secret, **urls, "database-url": database_url}}

    def start(self, container: dict[str, object]) -> subprocess.Popen[bytes]:
        # Without a cluster, pods would be processes in the container.
        env = {**environment(container, self._secrets), "WARMPOOL_DRIVER": "local"}
        command = container["command"]
        assert isinstance(command, list)
        return self.image.start(command, env, self.folder / "config", self.log)

    @property
    def log(self) -> Path:
        return self.folder / "log"


@pytest.fixture(scope="module")
def ground(
    image: BuiltImage, tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[ImageGround]:
    """A migrated database; the migration runs from the image too."""
    with RedisServer() as redis:
        made = ImageGround(image, tmp_path_factory.mktemp("image"), redis, postgres.create_database("image"))
        migrate = of_kind(OBJECTS, "Job")[0]["spec"]["template"]["spec"]["containers"][0]
        assert made.start(migrate).wait(timeout=120) == 0, made.log.read_text()
        yield made


def test_image_is_small_and_compiled_and_has_no_setuid_file(image: BuiltImage) -> None:
    size, privileged, uncompiled = 0, [], []
    for folder, _, names in os.walk(image.root):
        for name in names:
            path = Path(folder) / name
            found = path.lstat()
            size += found.st_blocks * 512
            if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
                privileged.append(path)
            if name.endswith(".py") and folder.endswith(
                ("/pool/core", "/usr/local/lib/python3.13", "/celery")
            ):
                uncompiled += [] if list(path.parent.glob(f"__pycache__/{path.stem}.*.pyc")) else [path]
    sys.stderr.write(f"\nthe image has {size >> 20} MiB unpacked\n")
    assert size >> 20 <= MOST_MIB
    assert privileged == []
    assert uncompiled == []


@pytest.mark.parametrize("component", COMPONENTS)
def test_component_starts_from_the_image_and_ends_on_sigterm(ground: ImageGround, component: str) -> None:
    spec = named(OBJECTS, "Deployment", f"wp-warmpool-{component}")["spec"]["template"]["spec"]
    container = spec["containers"][0]
    began = time.monotonic()
    running = ground.start(container)

    def started() -> bool:
        assert running.poll() is None, ground.log.read_text()[-3000:]
        probe = container["startupProbe"]
        if "exec" in probe:
            first = ground.image.first_process(running)
            return first > 0 and ground.image.inside(running, *probe["exec"]["command"]).returncode == 0
        port = container["ports"][0]["containerPort"]
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{probe['httpGet']['path']}", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    eventually(started, within_s=START_S, every_s=0.1)
    sys.stderr.write(f"\n{component} started after {time.monotonic() - began:.1f} s\n")
    status = Path(f"/proc/{ground.image.first_process(running)}/status").read_text()
    assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}" in status
    assert "CapEff:\t0000000000000000" in status
    assert ground.image.inside(running, "touch", "/opt/warmpool/new").returncode != 0
    os.kill(ground.image.first_process(running), signal.SIGTERM)
    running.wait(timeout=30)


def test_containers_leave_no_mount_on_this_machine(ground: ImageGround) -> None:
    assert mounts_below(ground.image.root) == []
