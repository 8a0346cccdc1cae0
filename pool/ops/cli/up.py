"""`warmpool up`: run and supervise the whole pool on this machine until Ctrl-C."""

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
from pool.config.environment import variable
from pool.config.reading import chosen
from pool.core.clock import Clock, SystemClock
from pool.core.errors import PoolError
from pool.core.names import ENV_CONFIG
from pool.core.settings import Settings
from pool.core.states import State
from pool.ops.cli.app import config_path, new_app
from pool.ops.up import cluster, components, pods, postgres, redis, welcome
from pool.ops.up.components import Component, Ports
from pool.ops.up.datadir import DataDir, write_scrape_targets
from pool.ops.up.ports import is_free
from pool.ops.up.progress import StartProgress
from pool.ops.up.supervisor import SupervisorContext, supervise
from pool.ops.up.terminal import Loudness, Terminal

app = new_app("Run the whole pool on this machine until Ctrl-C.")


@app.command()
def up(
    context: typer.Context,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory for all data and logs; default: data_dir of the configuration."
        ),
    ] = None,
    port_flower: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="Port of Flower; default: a free port, kept for the next start.",
        ),
    ] = None,
    port_board: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="Port of the board; default: a free port, kept for the next start.",
        ),
    ] = None,
    no_board: Annotated[bool, typer.Option("--no-board", help="Run without the board.")] = False,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Run without Flower.")] = False,
    driver: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Driver that creates pods: local or kubernetes; default: driver of the configuration.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Kubeconfig file, with --driver kubernetes; default: as kubectl finds it."
        ),
    ] = None,
    kube_context: Annotated[
        str | None,
        typer.Option(
            "--context", metavar="NAME", help="Context of the kubeconfig; default: its current context."
        ),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Namespace of the pods; default: that of the context.")
    ] = None,
    remove_pods: Annotated[
        bool,
        typer.Option(
            "--remove-pods", help="On Ctrl-C, also delete the pods in the cluster, including busy ones."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only problems.")] = False,
) -> None:
    """Run the whole pool on this machine until Ctrl-C.

    Starts Redis (unless broker_url is set) and Postgres (unless database_url is set), upgrades the
    database schema, then starts the Celery workers, beat, the board, the exporter and Flower. Each
    is a separate process with its log in DIR/logs. A process that ends is started again.

    Ctrl-C stops everything, including the local pods; a second Ctrl-C kills what is still running.
    If this command is killed, the other processes keep running, and the next `warmpool up` with the
    same directory takes them over.

    With --driver kubernetes the control plane runs here and the pods run in a cluster. Workers are
    reached at their pod addresses, so clients need a route to the pod network. Ctrl-C leaves the
    pods in the cluster, and the next `warmpool up` with the same directory takes them over; with
    --remove-pods Ctrl-C deletes them.

    Exit codes: 0 stopped on request, 1 a component did not start or `up` already runs, 2 invalid
    configuration.
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
        env={**env, variable("data_dir"): str(place.root)},
        flower=_Page(name="flower", wanted=not no_flower, port=port_flower),
        board=_Page(name="board", wanted=not no_board, port=port_board, needs="starlette"),
        removes_pods=remove_pods,
    )
    run.enter_cluster()
    terminal = Terminal(sys.stdout, loudness=Loudness.QUIET if quiet else Loudness.NORMAL)
    raise typer.Exit(supervise(place, run.plan, run.surroundings(terminal, SystemClock())))


@dataclass(slots=True)
class _Page:
    """Whether a web page is served, and its port; the port is chosen once the data directory is locked."""

    name: str
    wanted: bool
    port: int | None
    needs: str = ""

    def settle(self, place: DataDir, *, running: bool) -> int | None:
        if not self.wanted:
            self.port = None
        elif importlib.util.find_spec(self.needs or self.name) is None:
            raise PoolError(
                f"{self.needs or self.name} is not installed: pip install 'warmpool-server[embedded]', "
                f"or leave it out with --no-{self.name}"
            )
        elif self.port is None:
            self.port = place.port(self.name, running=running)
        elif not running and not is_free(self.port):
            raise PoolError(f"port {self.port} is already in use: choose another with --port-{self.name}")
        return self.port


@dataclass(slots=True)
class _Run:
    """One run of `up`: its settings, ports and addresses."""

    settings: Settings
    place: DataDir
    config: Path | None
    env: Mapping[str, str]
    flower: _Page
    board: _Page
    removes_pods: bool
    broker: str = ""
    database: str = ""
    cluster: str = ""
    metrics_ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def leaves_pods(self) -> bool:
        return bool(self.cluster) and not self.removes_pods

    def enter_cluster(self) -> None:
        """Raise before anything is started if the cluster cannot be reached or permissions are missing."""
        if self.settings.pool.driver == "kubernetes":
            self.cluster = cluster.enter(self.settings)
            from pool.ops.doctor import starting

            starting.assert_rights(self.settings)

    def plan(self, left: frozenset[str]) -> list[Component]:
        """Return every component; those still running from an earlier run (`left`) keep their port."""
        database = self._plan_database()
        for page in (self.flower, self.board):
            page.settle(self.place, running=page.name in left)
        self.metrics_ports = {
            name: self.place.port(f"metrics-{name}", running=name in left) for name in components.MEASURED
        }
        write_scrape_targets(self.place, self.metrics_ports)
        servers = [components.embedded_postgres(self.place, database)] if database else []
        url = database.url if database else ""
        ours = components.ours(self.place, self.settings, self.env, ports=self.ports, database_url=url)
        if self.settings.pool.broker_url:
            self.broker = "as set by broker_url"
            return [*servers, *ours]
        broker = redis.prepare(self.place, running="redis" in left)
        self.broker = f"Redis on 127.0.0.1:{broker.port}, URL in {self.place.broker_url}"
        return [components.embedded_redis(self.place, broker), *servers, *ours]

    def _plan_database(self) -> postgres.Database | None:
        """Return the embedded Postgres; None if database_url is set."""
        if self.settings.pool.database_url:
            self.database = "as set by database_url"
            return None
        self.database = f"Postgres on a private socket, URL in {self.place.database_url}"
        return postgres.prepare(self.place)

    @property
    def ports(self) -> Ports:
        return Ports(flower=self.flower.port, board=self.board.port, metrics=self.metrics_ports)

    def surroundings(self, terminal: Terminal, clock: Clock) -> SupervisorContext:
        return SupervisorContext(
            terminal=terminal,
            clock=clock,
            progress=StartProgress(counts=self.warm_counts, terminal=terminal),
            clear_pods=lambda hurried: self.clear_pods(clock, hurried),
            welcome=lambda: welcome.lines(
                self.place,
                places=self.places(),
                config=self.config,
                environment=os.environ,
                stops="everything except the pods in the cluster" if self.leaves_pods else "everything",
            ),
        )

    def places(self) -> list[tuple[str, str]]:
        """Return names and addresses for the welcome text."""
        board = [("board", f"http://127.0.0.1:{self.board.port}/")] if self.board.port else []
        board += (
            [
                (
                    "",
                    (
                        "to drain, retire or pause there, sign in with the password in "
                        f"{self.place.password_file('board')}"
                    ),
                )
            ]
            if board
            else []
        )
        # The password is part of the URL, so that the browser signs in. It gives access to Flower only.
        login = f"warmpool:{self.place.password('flower')}" if self.flower.port else ""
        flower = [("flower", f"http://{login}@127.0.0.1:{self.flower.port}/")] if self.flower.port else []
        cluster = [("cluster", self.cluster)] if self.cluster else []
        page = f"http://127.0.0.1:{self.metrics_ports['exporter']}/metrics"
        metrics = ("metrics", f"{page}, those of each component: {self.place.metrics}")
        return [*board, *flower, metrics, *cluster, ("broker", self.broker), ("database", self.database)]

    def clear_pods(self, clock: Clock, hurried: Callable[[], bool]) -> str:
        """Remove the pods and return a line about it. Pods in a cluster stay, unless --remove-pods
        was given.
        """
        from pool import wiring
        from pool.config import logs

        logs.set_up(logging.WARNING)
        if self.leaves_pods:
            return cluster.left_behind(self.settings)
        driver = wiring.build_driver(self.settings)
        try:
            # Before the database is used: the pods must be removed even if the database does not answer.
            result = pods.clear(driver, clock=clock, hurried=hurried)
        finally:
            driver.close()
        self._settle_table()
        return result

    def _settle_table(self) -> None:
        from pool import wiring
        from pool.ops.up import row_cleanup

        try:
            deps = wiring.build(self.settings, broker=wiring.DroppingBroker(), role="up")
        except PoolError:
            return  # the start failed before there was a database
        try:
            row_cleanup.all_lost(deps)
        finally:
            deps.close()

    def warm_counts(self) -> tuple[int, int]:
        """Return the number of idle workers and the sum of the warm targets."""
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
    """Return the variables for the components, so that all use the same configuration and data directory."""
    named = {ENV_CONFIG: file, variable("data_dir"): data_dir}
    return {name: str(path.absolute()) for name, path in named.items() if path is not None}
