"""Run `warmpool up` with stand-ins: a real supervisor, Redis and Postgres, but components that only
touch their ready files.

    python -m tests.support.standin_up DATA_DIR [--code VERSION] [--broken NAME]
        [--stubborn NAME] [--unclearable]

A broken component ends at once, a stubborn one ignores SIGTERM. Unclearable: clearing the pods
raises.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.core.names import ENV_READY_FILE
from pool.ops.up import components, postgres, redis
from pool.ops.up.components import Component, ComponentKind, ReadyFile, StartStage
from pool.ops.up.datadir import DataDir
from pool.ops.up.progress import StartProgress
from pool.ops.up.supervisor import SupervisorContext, supervise
from pool.ops.up.terminal import Terminal

NAMES = ("acquire", "fleet", "beat")
WELL = f"""
import os, pathlib, time
file = pathlib.Path(os.environ[{ENV_READY_FILE!r}])
while True:
    file.touch()
    time.sleep(0.2)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WELL}"
BROKEN = "import sys, time; time.sleep(0.3); print('the reason why it fails'); sys.exit(7)"


def standin(data_dir: DataDir, name: str, stage: StartStage, asked: argparse.Namespace) -> Component:
    script = {asked.broken: BROKEN, asked.stubborn: STUBBORN}.get(name, WELL)
    ready = data_dir.ready_file(name)
    return Component(
        name=name,
        stage=stage,
        argv=(sys.executable, "-c", script),
        env={ENV_READY_FILE: str(ready)},
        readiness=ReadyFile(path=ready),
        fingerprint=components.digest(name, asked.code),
        stop_grace_s=60,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--code", default="1")
    parser.add_argument("--broken", default="nobody")
    parser.add_argument("--stubborn", default="no one")
    parser.add_argument("--unclearable", action="store_true")
    asked = parser.parse_args()
    data_dir = DataDir.open(asked.data_dir)

    def plan(left: frozenset[str]) -> list[Component]:
        migrate = Component(
            name="migrate",
            stage=StartStage.MIGRATION,
            kind=ComponentKind.ONE_SHOT,
            argv=(sys.executable, "-c", "pass"),
            readiness=ReadyFile(path=data_dir.ready_file("migrate")),
            fingerprint="",
        )
        broker = redis.prepare(data_dir, running="redis" in left)
        stages = {"beat": StartStage.DRIVING}
        workers = [standin(data_dir, name, stages.get(name, StartStage.WORKERS), asked) for name in NAMES]
        database = postgres.prepare(data_dir)
        servers = [
            components.embedded_redis(data_dir, broker),
            components.embedded_postgres(data_dir, database),
        ]
        return [*servers, migrate, *workers]

    def clear_pods(hurried: Callable[[], bool]) -> str:
        if asked.unclearable:
            raise RuntimeError("the disk is full")
        return f"pods     cleared, hurried {hurried()}"

    terminal = Terminal(sys.stdout)
    around = SupervisorContext(
        terminal=terminal,
        clock=SystemClock(),
        progress=StartProgress(counts=lambda: (3, 3), terminal=terminal),
        clear_pods=clear_pods,
        welcome=lambda: ["welcome"],
    )
    try:
        return supervise(data_dir, plan, around)
    except PoolError as exc:
        print(exc, file=sys.stderr)
        return 1


if __name__ == "__main__":
    # A test runner in the background may have set this signal to be ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main())
