"""`warmpool up`: the whole pool on this machine, supervised, until Ctrl-C."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from pool import config
from pool.cli.app import config_path, new_app
from pool.clock import Clock, SystemClock
from pool.config.reading import chosen
from pool.embedded import cluster, components, pods, redis, welcome
from pool.embedded.components import Component, Ports
from pool.embedded.datadir import DataDir, write_scrape_targets
from pool.embedded.ports import is_free
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
    port_board: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=1, max=65_535, help="The board's port; else a free one, kept."),
    ] = None,
    no_board: Annotated[bool, typer.Option("--no-board", help="Run without the board.")] = False,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Run without Flower.")] = False,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="What makes pods: local or kubernetes; else driver of the configuration."
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --driver kubernetes: how to reach the cluster; else as kubectl does."
        ),
    ] = None,
    kube_context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="Context of the kubeconfig; else its current one."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the pods; else the context's.")
    ] = None,
    remove_pods: Annotated[
        bool,
        typer.Option("--remove-pods", help="Ctrl-C deletes the pods in the cluster, too, also busy ones."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say only what goes wrong.")] = False,
) -> None:
    """Run the whole pool on this machine, until Ctrl-C.

    Starts Redis (unless broker_url names one), brings the database up to date, then starts the Celery workers, beat, the
    board, the exporter and Flower, each as a process of its own with its log under DIR/logs. Whatever dies is started again.

    Ctrl-C stops all of it, the local pods included; a second Ctrl-C does so without waiting for anybody. If this command
    is killed the rest goes on serving, and the next `warmpool up` on the same directory takes it over.

    With --driver kubernetes the control plane runs here and the pods in a cluster. They answer at their pods' addresses, so
    whoever uses them needs a route there. Ctrl-C leaves them, busy or not, and the next `warmpool up` on the same directory
    takes them over; with --remove-pods it deletes them.

    Exit codes: 0 stopped as asked, 1 something could not be started or it already runs, 2 wrong configuration.
    """
    file = chosen(config_path(context), os.environ)
    wish = cluster.Wish(driver=driver, kubeconfig=kubeconfig, context=kube_context, namespace=namespace)
    env = _environment(file, data_dir) | wish.environment()
    settings = config.load(file, {**os.environ, **env})
    wish.check(settings)
    place = DataDir.open(config.data_dir(settings))
    run = _Run(
        settings=settings,
        place=place,
        config=file.absolute() if file else None,
        env={**env, "WARMPOOL_DATA_DIR": str(place.root)},
        flower=_Page(name="flower", wanted=not no_flower, port=port_flower),
        board=_Page(name="board", wanted=not no_board, port=port_board, needs="starlette"),
        removes_pods=remove_pods,
    )
    run.enter_cluster()
    terminal = Terminal(sys.stdout, loudness=Loudness.QUIET if quiet else Loudness.NORMAL)
    raise typer.Exit(supervise(place, run.plan, run.surroundings(terminal, SystemClock())))


@dataclass(slots=True)
class _Page:
    """Whether a page is served, and where; the port is settled once the data directory is ours."""

    name: str
    wanted: bool
    port: int | None
    needs: str = ""

    def settle(self, place: DataDir, *, running: bool) -> int | None:
        if not self.wanted:
            self.port = None
        elif importlib.util.find_spec(self.needs or self.name) is None:
            raise PoolError(
                f"{self.needs or self.name} is not installed: pip install 'warmpool[embedded]', "
                f"or leave it out with --no-{self.name}"
            )
        elif self.port is None:
            self.port = place.port(self.name, running=running)
        elif not running and not is_free(self.port):
            raise PoolError(f"port {self.port} is in use: choose another with --port-{self.name}")
        return self.port


@dataclass(slots=True)
class _Run:
    """What one command line comes to."""

    settings: Settings
    place: DataDir
    config: Path | None
    env: Mapping[str, str]
    flower: _Page
    board: _Page
    removes_pods: bool
    broker: str = ""
    cluster: str = ""
    metrics_ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def leaves_pods(self) -> bool:
        return bool(self.cluster) and not self.removes_pods

    def enter_cluster(self) -> None:
        """Before anything is started: a cluster that is not there, or not ours, is told at once."""
        if self.settings.pool.driver == "kubernetes":
            self.cluster = cluster.enter(self.settings)
            from pool.doctor import starting

            starting.assert_rights(self.settings)

    def plan(self, left: frozenset[str]) -> list[Component]:
        """Every component; what an earlier run has `left` keeps its port."""
        for page in (self.flower, self.board):
            page.settle(self.place, running=page.name in left)
        self.metrics_ports = {
            name: self.place.port(f"metrics-{name}", running=name in left) for name in components.MEASURED
        }
        write_scrape_targets(self.place, self.metrics_ports)
        ours = components.ours(self.place, self.settings, self.env, ports=self.ports)
        if self.settings.pool.broker_url:
            self.broker = "the one that broker_url names"
            return ours
        broker = redis.prepare(self.place, running="redis" in left)
        self.broker = f"127.0.0.1:{broker.port}, its URL is in {self.place.broker_url}"
        return [components.embedded(self.place, broker), *ours]

    @property
    def ports(self) -> Ports:
        return Ports(flower=self.flower.port, board=self.board.port, metrics=self.metrics_ports)

    def surroundings(self, terminal: Terminal, clock: Clock) -> Surroundings:
        return Surroundings(
            terminal=terminal,
            clock=clock,
            progress=Progress(counts=self.warm_counts, terminal=terminal),
            clear_pods=lambda hurried: self.clear_pods(clock, hurried),
            welcome=lambda: welcome.lines(
                self.place,
                places=self.places(),
                config=self.config,
                environment=os.environ,
                stops="all of it but the pods in the cluster" if self.leaves_pods else "all of it",
            ),
        )

    def places(self) -> list[tuple[str, str]]:
        """What there is to open or to reach, for the welcome."""
        board = [("board", f"http://127.0.0.1:{self.board.port}/")] if self.board.port else []
        board += (
            [("", f"to act there, sign in with the password in {self.place.password_file('board')}")]
            if board
            else []
        )
        # Flower's password is in its address: a browser takes it from there, and it opens nothing but that page.
        login = f"warmpool:{self.place.password('flower')}" if self.flower.port else ""
        flower = [("flower", f"http://{login}@127.0.0.1:{self.flower.port}/")] if self.flower.port else []
        cluster = [("cluster", self.cluster)] if self.cluster else []
        page = f"http://127.0.0.1:{self.metrics_ports['exporter']}/metrics"
        metrics = ("metrics", f"{page}, each component's own: {self.place.metrics}")
        return [*board, *flower, metrics, *cluster, ("broker", self.broker)]

    def clear_pods(self, clock: Clock, hurried: Callable[[], bool]) -> str:
        """Pods in a cluster stay, unless it was asked for: they belong to the table, not to this machine."""
        from pool import logs, wiring

        logs.set_up(logging.WARNING)
        if self.leaves_pods:
            return cluster.left_behind(self.settings)
        driver = wiring.build_driver(self.settings)
        try:
            # Before anything is asked of the database: whatever is wrong with it, the processes are to go.
            said = pods.clear(driver, clock=clock, hurried=hurried)
        finally:
            driver.close()
        self._settle_table()
        return said

    def _settle_table(self) -> None:
        from pool import settling, wiring

        try:
            deps = wiring.build(self.settings, broker=wiring.NobodyListens(), role="up")
        except PoolError:
            return  # it never came as far as a database
        try:
            settling.all_lost(deps, "the embedded pool was stopped")
        finally:
            deps.close()

    def warm_counts(self) -> tuple[int, int]:
        """Idle workers, and how many are wanted."""
        from pool import wiring
        from pool.store import targets, workers

        store = wiring.open_store(self.settings)
        try:
            with store.read() as tx:
                counts = workers.counts(tx)
                wanted = sum(targets.in_force(tx, self.settings.profiles).values())
        finally:
            store.close()
        idle = sum(n for (_, state), n in counts.items() if state is State.IDLE)
        return idle, wanted


def _environment(file: Path | None, data_dir: Path | None) -> dict[str, str]:
    """What the components are told, so that all of them read the same configuration and mean the same directory."""
    named = {"WARMPOOL_CONFIG": file, "WARMPOOL_DATA_DIR": data_dir}
    return {name: str(path.absolute()) for name, path in named.items() if path is not None}
