"""The pytest plugin of `warmpool`. Its fixtures import the client only when a test uses them.

`fake_pool` is a `FakePool`, closed at the end of the test. `warmpool_pool` is a real pool on this
machine, which `warmpool up` runs in a temporary directory for the whole session.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pool.client.testing import FakePool

_COMMAND = "warmpool_command"
_CONFIG = "warmpool_config"
_READY = b"the pool is ready"
_READY_S = 180.0
_STOP_S = 60.0
_LOOK_EVERY_S = 0.1
_TAIL_BYTES = 4000
# Run a command that gets SIGINT if this process is killed (Linux).
_LEASHED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGINT)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealPool:
    """A real pool for tests: pass `url` to `Pool` or to the service under test."""

    url: str
    data_dir: Path
    command: tuple[str, ...]

    def run(self, *words: str) -> str:
        """Run a `warmpool` command on this pool, and return what it prints."""
        env = _environment() | {"WARMPOOL_DATA_DIR": str(self.data_dir)}
        done = subprocess.run(  # noqa: S603 - the command is the project's own
            [*self.command, *words], env=env, cwd=self.data_dir, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"warmpool {' '.join(words)} ended with {done.returncode}: {done.stderr}")
        return done.stdout


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_COMMAND, "the command `warmpool`, for the fixture warmpool_pool", default="")
    parser.addini(_CONFIG, "configuration file of the pool of the fixture warmpool_pool", default="")


@pytest.fixture
def fake_pool() -> Iterator[FakePool]:
    """A pool in memory. Its server takes orders: `fake_pool.server.refuse("org_cap")`."""
    from pool.client.testing import FakePool

    with FakePool() as pool:
        yield pool


@pytest.fixture(scope="session")
def warmpool_pool(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPool]:
    """A real pool on this machine, without a cluster. It takes some 20 s to start, once per session."""
    command = (_command(_option(request.config, _COMMAND)),)
    folder = tmp_path_factory.mktemp("warmpool")
    own = _option(request.config, _CONFIG)
    config = request.config.rootpath / own if own else folder / "warmpool.toml"
    if not own:
        config.write_text("[profiles.default]\nwarm_target = 2\n")
    output = folder / "up.out"
    words = [
        sys.executable,
        "-c",
        _LEASHED,
        *command,
        "--config",
        str(config),
        "up",
        "--data-dir",
        str(folder / "data"),
    ]
    with output.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - the command is the project's own
            words, env=_environment(), cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _await_ready(process, output)
        url = (folder / "data" / "run" / "broker.url").read_text().strip()
        yield RealPool(url=url, data_dir=folder / "data", command=(*command, "--config", str(config)))
    finally:
        _stop(process, output)


def _option(config: pytest.Config, name: str) -> str:
    try:
        return str(config.getini(name))
    except (KeyError, ValueError):  # the fixtures were imported, and the plugin is not loaded
        return ""


def _command(named: str) -> str:
    beside = Path(sys.executable).with_name("warmpool")
    for candidate in (named, str(beside), "warmpool"):
        if candidate and (found := shutil.which(candidate)):
            return found
        if candidate == named and named:
            break
    pytest.fail(
        "the fixture warmpool_pool needs the command `warmpool`: install warmpool-server[embedded] in an "
        f"environment of its own, and name its command in the pytest option {_COMMAND}, or put it on PATH",
        pytrace=False,
    )


def _environment() -> dict[str, str]:
    """Return the environment without the settings of another pool."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("WARMPOOL_", "PYTEST_"))}


def _await_ready(process: subprocess.Popen[bytes], output: Path) -> None:
    from pool.core.clock import SystemClock

    clock = SystemClock()
    give_up = clock.monotonic() + _READY_S
    while _READY not in output.read_bytes():
        if process.poll() is not None or clock.monotonic() > give_up:
            tail = output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
            pytest.fail(f"`warmpool up` did not become ready; it printed:\n{tail}", pytrace=False)
        try:
            process.wait(_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            continue


def _stop(process: subprocess.Popen[bytes], output: Path) -> None:
    """Stop the pool as Ctrl-C does: `up` stops every component and every worker."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        tail = output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        pytest.fail(f"`warmpool up` did not stop within {_STOP_S:.0f} s; it printed:\n{tail}", pytrace=False)
