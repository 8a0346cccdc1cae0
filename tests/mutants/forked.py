"""Run pytest in a fork of this process, which has imported the libraries: that takes a third of the
time of a new interpreter.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

_LIBRARIES = (
    "alembic.command", "celery.app.amqp", "celery.worker.consumer", "hypothesis.stateful", "kombu.transport.redis",
    "prometheus_client", "psycopg", "redis.asyncio", "rich.table", "sqlalchemy.dialects.postgresql.psycopg", "structlog",
    "typer.testing", "urllib3", "xdist.scheduler", "yaml",
)  # fmt: skip
# A test that hangs fails, and its servers are ended. Libraries are imported too early for pytest to
# rewrite their assertions.
_OPTIONS = (
    "-q", "-x", "-p", "no:cacheprovider", "-o", "timeout=60", "-o", "timeout_method=signal",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_OURS = frozenset({"beat_schedule", "pool", "tasks", "tests"})
# Time for pytest to end its servers after an interrupt.
_ENDING_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The exit code of pytest and its output. Late: it was interrupted."""

    code: int
    output: str
    late: bool


class _InOrder:
    """A plugin that runs tests in the given order; otherwise those that start a pool come first."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self._places.get(item.nodeid, 0))


def run(folder: Path, tests: Sequence[str], *, within_s: float, env: Mapping[str, str]) -> Ended:
    """Run tests on the copy of the code in a folder, until one fails."""
    _import_libraries()
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _become_pytest(folder, tests, env, output.fileno())
        began = time.monotonic()
        try:
            code = _end_of(pid, within_s)
        except KeyboardInterrupt:
            _end_of(pid, 0)
            raise
        output.seek(0)
        late = time.monotonic() - began > within_s
        return Ended(code=code, output=output.read().decode(errors="replace"), late=late)


@cache
def _import_libraries() -> None:
    for name in _LIBRARIES:
        importlib.import_module(name)


def _become_pytest(folder: Path, tests: Sequence[str], env: Mapping[str, str], output: int) -> NoReturn:
    """The modules of this run are dropped, so that those of the copy are imported."""
    code = 1
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(folder)
        os.environ.update(env, PYTHONPATH=str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
            del sys.modules[name]
        root = str(Path(__file__).parents[2])
        sys.path[:] = [str(folder), *(each for each in sys.path if each not in {"", root})]
        importlib.invalidate_caches()
        sys.dont_write_bytecode = False
        code = int(pytest.main([*_OPTIONS, *tests], plugins=[_InOrder(tests)]))
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - a fork never returns to the code of its parent
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _end_of(pid: int, within_s: float) -> int:
    """Interrupted, pytest ends what its tests have started; if it does not end, it is killed."""
    for limit_s, sig in ((within_s, signal.SIGINT), (_ENDING_S, signal.SIGKILL), (_ENDING_S, signal.SIGKILL)):
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(_POLL_S)
        with suppress(ProcessLookupError):
            os.killpg(pid, sig)
    raise TimeoutError(f"process {pid} does not end")
