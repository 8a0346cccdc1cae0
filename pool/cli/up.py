"""`warmpool up`: the whole pool on this machine, supervised, until Ctrl-C."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pool import config
from pool.cli.app import config_path, new_app
from pool.clock import Clock, SystemClock
from pool.config.reading import chosen
from pool.embedded import components, pods, redis, welcome
from pool.embedded.components import Component
from pool.embedded.datadir import DataDir, free_port
from pool.embedded.progress import Progress
from pool.embedded.supervisor import Surroundings, supervise
from pool.embedded.terminal import Loudness, Terminal
from pool.errors import PoolError
from pool.settings import Settings
from pool.states import State

app = new_app("Run the whole pool on this machine, until Ctrl-C.")


@app.command()
def up(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where everything is kept; else data_dir of the configuration."),
    ] = None,
    port_flower: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65_535, help="Flower's port; else a free one, kept."),
    ] = None,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Run without Flower.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what goes wrong.")] = False,
) -> None:
    """Run the whole pool on this machine, until Ctrl-C.

    Starts Redis (unless broker_url names one), brings the database up to date, then starts the Celery workers, beat and
    Flower, each as a process of its own with its log under DIR/logs. Whatever dies is started again.

    Ctrl-C stops all of it, the local pods included; a second Ctrl-C does so without waiting for anybody. If this command
    is killed the rest goes on serving, and the next `warmpool up` on the same directory takes it over.

    Exit codes: 0 stopped as asked, 1 something could not be started or it already runs, 2 wrong configuration.
    """
    file = chosen(config_path(context), os.environ)
    env = _environment(file, data_dir)
    settings = config.load(file, {**os.environ, **env})
    place = DataDir.open(config.data_dir(settings))
    run = _Run(
        settings=settings,
        place=place,
        config=file.absolute() if file else None,
        env={**env, "WARMPOOL_DATA_DIR": str(place.root)},
        flower=_Flower(wanted=not no_flower, port=port_flower),
    )
    terminal = Terminal(sys.stdout, loudness=Loudness.QUIET if quiet else Loudness.NORMAL)
    raise typer.Exit(supervise(place, run.plan, run.surroundings(terminal, SystemClock())))


@dataclass(slots=True)
class _Flower:
    """Whether Flower runs, and where; the port is settled once the data directory is ours."""

    wanted: bool
    port: int | None

    def settle(self, place: DataDir, *, running: bool) -> int | None:
        if not self.wanted:
            self.port = None
        elif importlib.util.find_spec("flower") is None:
            raise PoolError(
                "Flower is not installed: pip install 'warmpool[embedded]', or leave it out with --no-flower"
            )
        elif self.port is None:
            self.port = place.port("flower", running=running)
        elif not running and free_port(self.port) is None:
            raise PoolError(f"port {self.port} is in use: choose another with --port-flower")
        return self.port


@dataclass(slots=True)
class _Run:
    """What one command line comes to."""

    settings: Settings
    place: DataDir
    config: Path | None
    env: Mapping[str, str]
    flower: _Flower
    broker: str = ""

    def plan(self, left: frozenset[str]) -> list[Component]:
        """Every component; what an earlier run has `left` keeps its port."""
        flower_port = self.flower.settle(self.place, running="flower" in left)
        ours = components.ours(self.place, self.settings, self.env, flower_port=flower_port)
        if self.settings.pool.broker_url:
            self.broker = "the one that broker_url names"
            return ours
        broker = redis.prepare(self.place, running="redis" in left)
        self.broker = f"127.0.0.1:{broker.port}, its URL is in {self.place.broker_url}"
        return [components.embedded(self.place, broker), *ours]

    def surroundings(self, terminal: Terminal, clock: Clock) -> Surroundings:
        return Surroundings(
            terminal=terminal,
            clock=clock,
            progress=Progress(counts=self.warm_counts, terminal=terminal),
            clear_pods=lambda hurried: self.clear_pods(clock, hurried),
            welcome=lambda: welcome.lines(
                self.place, broker=self.broker, flower_port=self.flower.port, config=self.config
            ),
        )

    def clear_pods(self, clock: Clock, hurried: Callable[[], bool]) -> str:
        """Pods in a cluster stay: they belong to the table, not to this machine."""
        if self.settings.pool.driver != "local":
            return ""
        from pool import logs, settling, wiring

        logs.set_up(logging.WARNING)
        try:
            deps = wiring.build(self.settings, broker=wiring.NobodyListens(), role="up")
        except PoolError:  # it never came as far as a database: there may be pods all the same
            return pods.clear(wiring.build_driver(self.settings), clock=clock, hurried=hurried)
        try:
            said = pods.clear(deps.driver, clock=clock, hurried=hurried)
            settling.all_lost(deps, "the embedded pool was stopped")
        finally:
            deps.close()
        return said

    def warm_counts(self) -> tuple[int, int]:
        """Idle workers, and how many are wanted."""
        from pool import wiring
        from pool.store import workers

        store = wiring.open_store(self.settings)
        try:
            with store.read() as tx:
                counts = workers.counts(tx)
        finally:
            store.close()
        idle = sum(n for (_, state), n in counts.items() if state is State.IDLE)
        return idle, sum(p.warm_target for p in self.settings.profiles.values())


def _environment(file: Path | None, data_dir: Path | None) -> dict[str, str]:
    """What the components are told, so that all of them read the same configuration and mean the same directory."""
    named = {"WARMPOOL_CONFIG": file, "WARMPOOL_DATA_DIR": data_dir}
    return {name: str(path.absolute()) for name, path in named.items() if path is not None}
