"""`warmpool exporter`: metrics of the database for Prometheus. `warmpool metrics`: the list of metrics, the
dashboard."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer

from pool.core.names import ENV_READY_FILE
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.printing import JsonOption, as_json, table

exporter_app = new_app("Serve metrics of the database to Prometheus.")
app = new_app("List the metrics, print the Grafana dashboard.")

DEFAULT_PORT = 9108
_BEAT_S = 2.0


@exporter_app.command()
def exporter(
    context: typer.Context,
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_535,
            help=f"Port to listen on; default: metrics_port, or {DEFAULT_PORT} if it is not set.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; default: the setting metrics_host.")
    ] = None,
) -> None:
    """Serve metrics of the database at /metrics, in the foreground: workers by state, waiting
    requests, orgs, passes, cost of idle workers.

    It reads the database on each scrape and keeps no state. One exporter is enough; two return the
    same values. The other processes of the pool serve their own counters at metrics_port.
    """
    from pool import wiring
    from pool.broker.queues import Queues
    from pool.config import logs
    from pool.core.clock import SystemClock
    from pool.core.connections import EXPORTER_CONNECTIONS
    from pool.core.names import queue_of
    from pool.core.threads import Threads
    from pool.metrics import serving
    from pool.ops import exporting
    from pool.store import orgs

    logs.set_up()
    settings = settings_of(context)
    store = wiring.open_store(settings, connections=EXPORTER_CONNECTIONS)

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
    # The exporter has no counter of its own thread restarts; the log has a line for each.
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
    """Touch the ready file: this process is healthy."""
    if path := os.environ.get(ENV_READY_FILE):
        Path(path).touch()


@app.command("list")
def list_metrics(
    json: JsonOption = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, as in docs/metrics.md.")
    ] = False,
) -> None:
    """List every metric: name, kind, labels and meaning."""
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
    """Print the Grafana dashboard as JSON, to import or provision."""
    from pool.metrics import dashboard as drawn

    print(drawn.as_json(), end="")
