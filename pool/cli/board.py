"""`warmpool board`: serve the web page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pool.cli.app import new_app, settings_of
from pool.errors import PoolError

app = new_app("Serve the board.")

PASSWORD_VARIABLE = "WARMPOOL_RUN_BOARD_PASSWORD"  # noqa: S105 - a name


@app.command()
def board(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Its port.")] = 8090,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"The password for acting; else {PASSWORD_VARIABLE}.")
    ] = None,
    open_to_all: Annotated[
        bool,
        typer.Option("--open", help="Not on loopback: everybody may look, only who has signed in may act."),
    ] = False,
    flower_url: Annotated[str, typer.Option(metavar="URL", help="Where Flower is, for links to tasks.")] = "",
    pod_url: Annotated[
        str, typer.Option(metavar="URL", help="A console's page of a pod, with {pod} and {node}, for links.")
    ] = "",
) -> None:
    """Serve the board: the fleet live, who waits and why, orgs, passes, and every worker's life.

    On loopback everybody on this machine may look. Acting (drain, retire, pause a pass) takes the password; without one nobody can. On any other
    address looking takes the password as well, unless --open; without either it does not start.
    """  # fmt: skip
    from pool import logs, wiring
    from pool.board.rendering import Links
    from pool.board.serving import Where, build, serve
    from pool.cli.working import lasting
    from pool.clock import SystemClock
    from pool.store import migrations

    settings = settings_of(context)
    where = Where(host=host, port=port, password=_password(password_file), open_to_all=open_to_all)
    where.must_be_safe()
    logs.set_up()
    store = wiring.open_store(settings)
    migrations.assert_current(store)
    links = Links(flower_url=flower_url, pod_url=pod_url)
    made = build(
        store, settings, where=where, links=links, clock=SystemClock(), deps=lambda: lasting(settings)
    )
    print(f"board on http://{host}:{port}/", flush=True)
    try:
        serve(made, where)
    finally:
        store.close()


def _password(file: Path | None) -> str:
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        text = file.read_text().strip()
    except OSError as exc:
        raise PoolError(f"cannot read {file}: {exc.strerror}") from exc
    if not text:
        raise PoolError(f"{file} is empty: a password is needed there")
    return text
