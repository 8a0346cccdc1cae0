"""`warmpool worker-proxy`, `warmpool worker check`: for workers of one's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pool.client import worker_command
from pool.core.errors import InvalidInput
from pool.ops.cli.app import UsageError, new_app

proxy_app = new_app("Run a program as a worker of the pool.")
_PLAIN = {"allow_interspersed_args": False}


@proxy_app.command(help=worker_command.PROXY_HELP, context_settings=_PLAIN)
def worker_proxy(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="Program and its arguments.")],
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Port that the program must listen on, passed to it in PORT. 0: a free port.",
        ),
    ] = 0,
    connections: Annotated[int, typer.Option(min=1, help="Most requests at the same time.")] = 256,
) -> None:
    raise typer.Exit(worker_command.run_proxy(command, port=port, connections=connections))


def check(
    url: Annotated[str, typer.Argument(help="Address of a running worker, or the program's arguments.")] = "",
    rest: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    command: Annotated[str, typer.Option(metavar="CMD...", help="Start this program; must come last.")] = "",
    key_file: Annotated[
        Path | None, typer.Option(help="File with the key of the running worker, in hex.")
    ] = None,
    path: Annotated[str, typer.Option(help="A path that the program serves to its holder.")] = "/",
    readiness_path: Annotated[str, typer.Option(help="readiness_path of the profile.")] = "/healthz",
    activation_path: Annotated[str, typer.Option(help="activation_path of the profile, if any.")] = "",
    ready_s: Annotated[float, typer.Option(min=0.1, help="Longest time to become ready, in seconds.")] = 30.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    if url and rest and not command:
        raise UsageError("options must come before the URL: warmpool worker check --key-file FILE URL")
    # Words after --command belong to it: the first would otherwise be taken for the URL.
    words = [command, *([url] if url else []), *(rest or [])] if command else []
    try:
        options = worker_command.check_options(
            url="" if command else url,
            key_file=key_file,
            command=words,
            paths=(path, readiness_path, activation_path),
            ready_s=ready_s,
        )
        text, code = worker_command.run_check(options, as_json=json)
    except InvalidInput as exc:
        raise UsageError(exc.detail) from exc
    sys.stdout.write(text)
    raise typer.Exit(code)


check.__doc__ = worker_command.CHECK_HELP
