"""`warmpool exporter`: what the table says, for Prometheus. `warmpool metrics`: what there is to be seen."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from pool.cli.app import new_app, settings_of
from pool.cli.printing import JsonOption, as_json, table

exporter_app = new_app("Serve what the table says to Prometheus.")
app = new_app("List the metrics, print the dashboard.")

DEFAULT_PORT = 9108
_READY_FILE = "WARMPOOL_RUN_READY_FILE"
_BEAT_S = 2.0


@exporter_app.command()
def exporter(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help=f"Where it listens; else metrics_port, else {DEFAULT_PORT}."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="On which address; else metrics_host.")] = None,
) -> None:
    """Serve what the table says at /metrics, in the foreground: workers by state, waiting, orgs, passes, cost of idling.

    It reads the database when it is asked, and keeps nothing. One is enough; two tell the same. The processes of the
    pool serve their own counters themselves, at metrics_port.
    """
    from pool import exporting, logs, wiring
    from pool.clock import SystemClock
    from pool.metrics import serving
    from pool.queues import Queues
    from pool.signing import queue_of
    from pool.store import orgs
    from pool.threads import Threads

    logs.set_up()
    settings = settings_of(context)
    store = wiring.open_store(settings)

    def of_orgs() -> list[str]:
        if not settings.pool.queue_per_org:
            return []
        with store.read() as tx:
            return [queue_of(org.id) for org in orgs.every(tx)]

    queues = Queues(wiring.open_redis(settings), of_orgs)
    page = exporting.Exporter(store, settings, clock=SystemClock(), look=queues.look)
    ended = threading.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: ended.set())
    # Its page is about the table and counts nothing of itself; the log has a line for every restart.
    threads = Threads(SystemClock(), lambda _: None)
    server = serving.serve(
        page.render,
        threads,
        host=host or settings.pool.metrics_host,
        port=port or settings.pool.metrics_port or DEFAULT_PORT,
    )
    _touch()
    print(f"serving http://{server.server_address[0]!s}:{server.server_port}/metrics", flush=True)
    while not ended.wait(_BEAT_S):
        if not threads.unwell():
            _touch()
    server.shutdown()
    store.close()


def _touch() -> None:
    """Say that this process is well, as the others do."""
    if path := os.environ.get(_READY_FILE):
        Path(path).touch()


@app.command("list")
def list_metrics(
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As docs/metrics.md has it.")] = False,
) -> None:
    """Every metric: its name, kind, labels and meaning."""
    from pool.metrics import describing

    if markdown:
        print(describing.markdown(), end="")
    elif json:
        as_json(describing.plain())
    else:
        rows: list[list[Any]] = [
            [m["name"], m["kind"], ",".join(m["labels"]), m["meaning"]] for m in describing.plain()
        ]
        print(table(["NAME", "KIND", "LABELS", "MEANING"], rows))


@app.command()
def dashboard() -> None:
    """The Grafana dashboard as JSON, to be imported or provisioned."""
    from pool.metrics import dashboard as drawn

    print(drawn.as_json(), end="")
