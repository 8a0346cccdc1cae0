"""`warmpool org key`, `change-key` and `acl`: what an org's services are given. Also the key that commands here sign with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pool import acl, config
from pool.cli.app import settings_of
from pool.cli.working import operator
from pool.contract import org_id
from pool.errors import PoolError
from pool.ids import ClaimId, OrgId
from pool.settings import Settings

Name = Annotated[str, typer.Argument(help="The org.")]
DAY_S = 86_400


def add_to(app: typer.Typer) -> None:
    """These commands belong to `warmpool org`."""
    app.command("key")(key)
    app.command("change-key")(change_key)
    app.command("acl")(print_acl)


def key(context: typer.Context, name: Name) -> None:
    """The key that the org's services sign with. It is derived, not stored: keep what is printed in a Secret of theirs."""
    settings, org = settings_of(context), org_id(name)
    print(key_of(settings, org))


def change_key(
    context: typer.Context,
    name: Name,
    overlap: Annotated[
        int, typer.Option(min=0, metavar="S", help="How long the old key is honoured; 0: no longer.")
    ] = DAY_S,
    why: Annotated[str, typer.Option("--why", help="A reason, for the record.")] = "",
) -> None:
    """A new key for the org, printed. The one before it is honoured for the overlap, and any older one no more. Known everywhere within seconds."""
    from pool import operating, wiring

    settings, org = settings_of(context), org_id(name)
    store = wiring.open_store(settings)
    try:
        operating.change_org_key(store, org, overlap_s=overlap, operator=operator(why))
    finally:
        store.close()
    print(key_of(settings, org))


def print_acl(
    context: typer.Context,
    name: Name,
    user: Annotated[str, typer.Option(help="The Redis user; the org's name unless it is given.")] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(help="Its password, of which only the hash is printed; without one the user is off."),
    ] = None,
    redis: Annotated[
        acl.Dialect,
        typer.Option(help="The oldest server that reads it. 6.2 without queue_per_org: Celery results only."),
    ] = acl.Dialect.SELECTORS,
) -> None:
    """The line of Redis' ACL file for the org's services. With queue_per_org it lets them write to their own queue and read their own answers
    only; without, it is the same for all."""
    settings, org = settings_of(context), org_id(name)
    named = acl.checked_user(user or org)
    try:
        password = "" if password_file is None else password_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot read {password_file}: {exc}") from exc
    rules = acl.org_rules(org, redis) if settings.pool.queue_per_org else acl.producer_rules(redis)
    print(acl.line(named, rules, password))


def key_of(settings: Settings, org: OrgId) -> str:
    """The newest key of an org, as its services are given it."""
    from pool import wiring
    from pool.store import orgkeys

    store = wiring.open_store(settings)
    try:
        with store.read() as tx:
            version = orgkeys.newest(tx, org)
    finally:
        store.close()
    own = settings.pool.queue_per_org
    return config.keyring(settings).org_key(org, version, own_queue=own).text


def signing_key(settings: Settings, *, org: str = "", claim_id: str = "") -> str | None:
    """What a command signs with that acts as a service would: whoever has the master key may act for any org. None: its own environment says, or
    nothing is signed here."""
    from pool.client.credentials import key_source

    if not settings.pool.signed_requests or key_source(None) is not None:
        return None
    return key_of(settings, org_id(org) if org else _holder(settings, claim_id))


def _holder(settings: Settings, claim_id: str) -> OrgId:
    from pool import wiring
    from pool.store import claims

    store = wiring.open_store(settings)
    try:
        with store.read() as tx:
            claim = claims.get(tx, ClaimId(claim_id))
    finally:
        store.close()
    if claim is None:
        raise PoolError(f"there is no claim {claim_id}")
    return claim.org
