"""`warmpool board`: serve the web page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pool.cli.app import new_app, settings_of
from pool.errors import PoolError

if TYPE_CHECKING:
    from pool.deps import Deps

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
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="Address or network of a proxy whose X-Forwarded-For, -Proto and -Host are believed; repeatable.",
        ),
    ] = None,
    secure_cookie: Annotated[
        bool,
        typer.Option(
            "--secure-cookie", help="Cookie for TLS only, also without a trusted X-Forwarded-Proto."
        ),
    ] = False,
    sso_user_header: Annotated[
        str,
        typer.Option(
            metavar="HEADER",
            help="Trusted proxy's header with the user's name, X-Forwarded-User for instance; empty: no single sign-on.",
        ),
    ] = "",
    sso_groups_header: Annotated[
        str,
        typer.Option(
            metavar="HEADER", help="Trusted proxy's header with the user's groups, separated by commas."
        ),
    ] = "",
    sso_operator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="User of single sign-on who may act; repeatable. Others only look."
        ),
    ] = None,
    sso_operator_group: Annotated[
        list[str] | None,
        typer.Option(metavar="GROUP", help="Group of single sign-on whose users may act; repeatable."),
    ] = None,
) -> None:
    """Serve the board: the fleet live, who waits and why, orgs, passes, and every worker's life.

    On loopback everybody on this machine may look. Acting (drain, retire, pause a pass) takes the password, or an operator of single sign-on;
    without either nobody can. On any other address looking takes one of them as well, unless --open; without any of the three it does not start.
    Actions are decisions in the table, and passes carry them out within seconds: the board needs the database, and neither the master key nor Redis.
    """  # fmt: skip
    from pool import logs, wiring
    from pool.board.proxies import Proxies
    from pool.board.rendering import Links
    from pool.board.serving import Where, build, serve
    from pool.board.users import SignOn
    from pool.clock import SystemClock
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
    store = wiring.open_store(settings)
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
        return os.environ.get(PASSWORD_VARIABLE, "")
    try:
        text = file.read_text().strip()
    except OSError as exc:
        raise PoolError(f"cannot read {file}: {exc.strerror}") from exc
    if not text:
        raise PoolError(f"{file} is empty: a password is needed there")
    return text
