"""Resolve settings that may be empty: the data directory, the database, the broker and the master key."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pool.config.rules import LEAST_KEY_CHARS
from pool.core.errors import PoolError
from pool.core.ids import RandomIds
from pool.core.keys import Keyring
from pool.core.settings import Settings

BROKER_FILE = "run/broker.url"
DATABASE_FILE = "run/database.url"
KEY_FILE = "master.key"


def data_dir(settings: Settings) -> Path:
    """Return the directory of the embedded services. It may not exist yet."""
    return Path(settings.pool.data_dir).absolute()


def made_data_dir(settings: Settings) -> Path:
    """Return the same directory; create it with mode 0700 if it does not exist."""
    path = data_dir(settings)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise PoolError(f"cannot create data_dir {path}: {exc.strerror}") from exc
    return path


def database_url(settings: Settings) -> str:
    """Return the URL of the database; without a setting, the URL that the running embedded server wrote."""
    url = settings.pool.database_url or _written(data_dir(settings) / DATABASE_FILE)
    if not url:
        raise PoolError("no database is configured: set database_url, or start one with `warmpool up`")
    return url


def broker_url(settings: Settings) -> str:
    """Return the URL of the broker; without a setting, the URL that the running embedded server wrote."""
    if settings.pool.broker_url:
        return settings.pool.broker_url
    url = _written(data_dir(settings) / BROKER_FILE)
    if not url:
        raise PoolError("no broker is configured: set broker_url, or start one with `warmpool up`")
    return url


def _written(path: Path) -> str:
    """Return the URL in this file, or "" if no server has written one."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot read {path}: {exc}") from exc


def master_key(settings: Settings) -> bytes:
    """Return the master key; without a setting, the one under data_dir, which the first process generates."""
    text = settings.pool.master_key.strip() or _kept_key(made_data_dir(settings) / KEY_FILE)
    return text.encode()


def has_master_key(settings: Settings) -> bool:
    """Return whether a master key exists. Does not generate one."""
    return bool(settings.pool.master_key.strip()) or (data_dir(settings) / KEY_FILE).is_file()


def keyring(settings: Settings) -> Keyring:
    """Return all master keys that are accepted."""
    pool = settings.pool
    return Keyring(
        current=master_key(settings),
        previous=pool.master_key_previous.strip().encode() or None,
        next=pool.master_key_next.strip().encode() or None,
    )


def _kept_key(path: Path) -> str:
    try:
        if not path.exists():
            _make_key(path)
        _make_private(path)
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot store the master key in {path}: {exc}; set master_key instead") from exc
    if len(text) < LEAST_KEY_CHARS:
        raise PoolError(
            f"{path} is not a valid master key: {len(text)} characters, the minimum is {LEAST_KEY_CHARS}"
        )
    return text


def _make_private(path: Path) -> None:
    """Remove the access of other users to the key file. A file that is mounted read-only stays unchanged."""
    if path.stat().st_mode & 0o077:
        with contextlib.suppress(OSError):
            path.chmod(0o600)


def _make_key(path: Path) -> None:
    """Create the key file atomically. A link, unlike a rename, never replaces a key that is already
    in use.
    """
    ids = RandomIds()
    draft = path.with_name(f"{path.name}.{ids.token()}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{ids.token()}{ids.token()}\n")
            file.flush()
            os.fsync(file.fileno())
        _link_unless_there(draft, path)
    finally:
        draft.unlink()


def _link_unless_there(draft: Path, path: Path) -> None:
    try:
        path.hardlink_to(draft)
    except FileExistsError:
        return  # another process created the key first; use that one
