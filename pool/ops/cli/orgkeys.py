"""`warmpool org key`, `change-key` and `acl`: credentials for an org's services. Also the key that CLI
commands sign with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pool import config
from pool.broker import acl
from pool.core.contract import org_id
from pool.core.errors import PoolError
from pool.core.ids import ClaimId, OrgId
from pool.core.settings import Settings
from pool.ops.cli.app import settings_of
from pool.ops.cli.pool_access import operator

Name = Annotated[str, typer.Argument(help="Name of the org.")]
DAY_S = 86_400


def add_to(app: typer.Typer) -> None:
    """Add the key commands to `warmpool org`."""
    app.command("key")(key)
    app.command("change-key")(change_key)
    app.command("acl")(print_acl)


def key(context: typer.Context, name: Name) -> None:
    """Print the key that the services of an org sign their requests with.

    The key is derived from the master key and not stored. Put the printed key into a Secret of the services.
    """
    settings, org = settings_of(context), org_id(name)
    print(key_of(settings, org))


def change_key(
    context: typer.Context,
    name: Name,
    overlap: Annotated[
        int,
        typer.Option(
            min=0, metavar="S", help="Time the previous key stays valid, in seconds; 0 makes it invalid now."
        ),
    ] = DAY_S,
    why: Annotated[str, typer.Option("--why", help="Reason to record in the audit entry.")] = "",
) -> None:
    """Create a new key for an org and print it.

    The previous key stays valid for --overlap seconds; older keys become invalid. All processes of
    the pool use the new key within seconds.
    """
    from pool import wiring
    from pool.ops import operating

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
    user: Annotated[str, typer.Option(help="Name of the Redis user; default: the name of the org.")] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="File with the password of the user; only its hash is printed. Without it the "
            "user is disabled."
        ),
    ] = None,
    redis: Annotated[
        acl.Dialect,
        typer.Option(
            help="Oldest Redis version that must accept the line. "
            "6.2 without queue_per_org allows Celery results only."
        ),
    ] = acl.Dialect.SELECTORS,
) -> None:
    """Print the line of the Redis ACL file for the services of an org.

    With queue_per_org the user may only write to the queue of the org and read the replies to it. Without
    queue_per_org the rules are the same for all orgs.
    """
    settings, org = settings_of(context), org_id(name)
    named = acl.checked_user(user or org)
    try:
        password = "" if password_file is None else password_file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot read {password_file}: {exc}") from exc
    rules = acl.org_rules(org, redis) if settings.pool.queue_per_org else acl.producer_rules(redis)
    print(acl.line(named, rules, password))


def key_of(settings: Settings, org: OrgId) -> str:
    """Return the newest key of an org, as its services use it."""
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
    """Return the key a CLI command signs with: derived from the master key, for the org or the
    holder of the claim.

    None if the environment has a key already, or if requests are not signed.
    """
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
        raise PoolError(f"there is no claim {claim_id}; `warmpool get claims` lists the live ones")
    return claim.org
