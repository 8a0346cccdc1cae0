"""`warmpool acquire` and `warmpool release`: what services do, from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from pool import config
from pool.client import ClaimLost, Pool, Refused, Worker
from pool.core import names
from pool.core.contract import instant
from pool.ops.cli.app import new_app, settings_of
from pool.ops.cli.orgkeys import signing_key
from pool.ops.cli.printing import JsonOption, as_json

acquire_app = new_app("Acquire a worker, and run a command while holding it.")
release_app = new_app("Release a claim.")


@acquire_app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def acquire(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND]...", help="Command to run while holding the worker."),
    ] = None,
    org: Annotated[str, typer.Option(help="Org to acquire for.")] = "default",
    profile: Annotated[str, typer.Option(help="Profile of the worker.")] = "default",
    wait: Annotated[
        int, typer.Option("--wait", metavar="S", help="Longest time to wait for a worker, in seconds.")
    ] = 0,
    lease: Annotated[
        int,
        typer.Option(
            "--lease",
            metavar="S",
            help="Lease of the claim, in seconds. Renewed while a command runs, and not without a command.",
        ),
    ] = 30,
    ttl: Annotated[
        int | None,
        typer.Option(
            "--ttl", metavar="S", help="Time the worker stays parked for the org after release, in seconds."
        ),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="Idempotency key: the same id returns the same claim.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Acquire a worker. With a command, hold the worker while the command runs, then release it:

    \b
        warmpool acquire --org acme -- sh -c 'curl -s -K "$WARMPOOL_CURL_CONFIG" "$WARMPOOL_ENDPOINT/echo"'

    The environment of the command has WARMPOOL_ENDPOINT, WARMPOOL_TOKEN, WARMPOOL_CLAIM,
    WARMPOOL_EPOCH and WARMPOOL_CURL_CONFIG (a file with the headers, for `curl -K`). Without a
    command the claim is printed; it expires after its lease.

    Exit codes: 3 if the request is refused (the reason is printed), else the exit code of the command.
    """
    settings = settings_of(context)
    pool = Pool(config.broker_url(settings), name="cli", org_key=signing_key(settings, org=org))
    try:
        worker = pool.acquire(org, profile, wait_s=wait, lease_s=lease, ttl_s=ttl, request_id=request_id)
    except Refused as exc:
        _refused(exc, json=json)
        raise typer.Exit(3) from exc
    if not command:
        _print(worker, json=json)
        worker.let_go()  # this process exits and renews nothing: the claim lives for one lease
        return
    code = 1
    try:
        code = _run(worker, command)
    finally:
        try:
            worker.release()
        except ClaimLost as exc:
            print(f"warmpool: the claim ended before the command did: {exc}", file=sys.stderr)
        pool.close()
    raise typer.Exit(code)


@release_app.command()
def release(
    context: typer.Context,
    claim_id: Annotated[str, typer.Argument(help="Id of the claim to release.")],
    tainted: Annotated[
        bool, typer.Option("--tainted", help="Delete the worker instead of using it again.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Release a claim. Repeating it is harmless.

    Exit code: 1 if there is no such claim.
    """
    settings = settings_of(context)
    with Pool(config.broker_url(settings), org_key=signing_key(settings, claim_id=claim_id)) as pool:
        outcome = pool.release(claim_id, condition="tainted" if tainted else "clean")
    as_json({"outcome": outcome}) if json else print(outcome)
    raise typer.Exit(1 if outcome == "unknown_claim" else 0)


def _run(worker: Worker, command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="warmpool-") as folder:
        headers = Path(folder) / "curl"
        headers.touch(mode=0o600)
        headers.write_text("".join(f'header = "{k}: {v}"\n' for k, v in worker.auth.items()))
        env = {
            names.ENV_ENDPOINT: worker.endpoint,
            names.ENV_TOKEN: worker.token,
            names.ENV_CLAIM: worker.claim_id,
            names.ENV_EPOCH: str(worker.epoch),
            names.ENV_CURL_CONFIG: str(headers),
        }
        try:
            child = subprocess.Popen(command, env=os.environ | env)  # noqa: S603 - the user's own command
        except OSError as exc:
            print(f"warmpool: {command[0]}: {exc.strerror}", file=sys.stderr)
            return 127
        # The terminal sends Ctrl-C to the command too; we wait for it to exit, then release the worker.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: child.terminate())
        code = child.wait()
        return code if code >= 0 else 128 - code


def _print(worker: Worker, *, json: bool) -> None:
    shown: dict[str, Any] = {
        "outcome": "granted",
        "claim_id": worker.claim_id,
        "worker_id": worker.worker_id,
        "epoch": worker.epoch,
        "pod": worker.pod,
        "endpoint": worker.endpoint,
        "token": worker.token,
        "lease_expires_at": instant(worker.lease_expires_at),
        "source": worker.source,
    }
    if json:
        as_json(shown)
        return
    print("\n".join(f"{k:<17} {v}" for k, v in shown.items() if k != "outcome"))
    print(f"\nto release it: warmpool release {worker.claim_id}")


def _refused(exc: Refused, *, json: bool) -> None:
    if json:
        as_json(
            {
                "outcome": "refused",
                "reason": exc.reason,
                "retry_after_s": exc.retry_after_s,
                "detail": exc.detail,
            }
        )
    else:
        again = f" (retry in {exc.retry_after_s:g} s)" if exc.retry_after_s else ""
        print(f"warmpool: refused, {exc.reason}: {exc.detail}{again}", file=sys.stderr)
