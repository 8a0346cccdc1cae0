"""`warmpool board`: serve the web page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pool.core.errors import PoolError
from pool.core.names import ENV_BOARD_PASSWORD
from pool.ops.cli.app import new_app, settings_of

if TYPE_CHECKING:
    from pool.lifecycle.deps import Deps

app = new_app("Serve the board.")


@app.command()
def board(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Port to listen on.")] = 8090,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"File with the operators' password; default: {ENV_BOARD_PASSWORD}."
        ),
    ] = None,
    open_to_all: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Show the board without a sign-in, also to other machines. Actions still need a sign-in.",
        ),
    ] = False,
    flower_url: Annotated[str, typer.Option(metavar="URL", help="URL of Flower, for links to tasks.")] = "",
    pod_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL of a pod's page in your console, for links; {pod} and {node} are filled in.",
        ),
    ] = "",
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="Address or network of a trusted proxy: its X-Forwarded-For, -Proto and -Host "
            "headers are used; repeatable.",
        ),
    ] = None,
    secure_cookie: Annotated[
        bool,
        typer.Option(
            "--secure-cookie",
            help="Always set the Secure flag of the session cookie. Use it only if browsers reach the board over TLS.",
        ),
    ] = False,
    sso_user_header: Annotated[
        str,
        typer.Option(
            metavar="HEADER",
            help="Header of the trusted proxy with the user name, for example X-Forwarded-User; "
            "enables single sign-on.",
        ),
    ] = "",
    sso_groups_header: Annotated[
        str,
        typer.Option(
            metavar="HEADER",
            help="Name of the header in which the trusted proxy sends the user's groups, separated by commas.",
        ),
    ] = "",
    sso_operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Single sign-on user with the operator role; repeatable. Other users can only view.",
        ),
    ] = None,
    sso_operator_group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Single sign-on group with the operator role; repeatable."),
    ] = None,
) -> None:
    """Serve the board: live fleet, waiting requests and why they wait, orgs, passes, the history of
    every worker.

    On loopback, every user of this machine can view the board. Actions (drain, retire, pause a
    pass) need the password or the operator role of single sign-on; without both, actions are
    disabled. On any other address, viewing needs a sign-in too, unless --open is given; with no
    password, no single sign-on and no --open the board does not start.

    The board writes actions to the database, and the passes carry them out within seconds. The
    board needs the database, and neither the master key nor Redis.
    """
    from pool import wiring
    from pool.config import logs
    from pool.core.clock import SystemClock
    from pool.core.connections import BOARD_CONNECTIONS
    from pool.ops.board.proxies import Proxies
    from pool.ops.board.rendering import Links
    from pool.ops.board.serving import Where, build, serve
    from pool.ops.board.users import SignOn
    from pool.store import migrations

    settings = settings_of(context)
    sign_on = SignOn(
        user_header=sso_user_header,
        groups_header=sso_groups_header,
        operators=frozenset(sso_operator or ()),
        operator_groups=frozenset(sso_operator_group or ()),
    )
    where = Where(
        host=host, port=port, password=_password(password_file), open_to_all=open_to_all,
        proxies=Proxies.parse(trusted_proxy or ()), sign_on=sign_on, secure_cookie=secure_cookie,
    )  # fmt: skip
    where.must_be_safe()
    logs.set_up()
    store = wiring.open_store(settings, connections=BOARD_CONNECTIONS)
    migrations.assert_current(store)
    links = Links(flower_url=flower_url, pod_url=pod_url)

    def operators() -> Deps:
        return wiring.build_for_operators(settings, store, role="board")

    made = build(store, settings, where=where, links=links, clock=SystemClock(), deps=operators)
    print(f"board on http://{host}:{port}/", flush=True)
    try:
        serve(made, where)
    finally:
        store.close()


def _password(file: Path | None) -> str:
    if file is None:
        return os.environ.get(ENV_BOARD_PASSWORD, "")
    try:
        text = file.read_text().strip()
    except OSError as exc:
        raise PoolError(f"cannot read {file}: {exc.strerror}") from exc
    if not text:
        raise PoolError(f"{file} is empty: write the password into it")
    return text
