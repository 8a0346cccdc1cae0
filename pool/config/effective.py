"""What empty settings come to: the data directory, the database, the broker, the master key."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pool.config.rules import LEAST_KEY_CHARS
from pool.errors import PoolError
from pool.ids import RandomIds
from pool.keys import Keyring
from pool.settings import Settings

BROKER_FILE = "run/broker.url"
KEY_FILE = "master.key"


def data_dir(settings: Settings) -> Path:
    """Where the embedded services keep their files. It may not exist yet."""
    return Path(settings.pool.data_dir).absolute()


def made_data_dir(settings: Settings) -> Path:
    """The same, made if need be, for nobody else to read."""
    path = data_dir(settings)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise PoolError(f"cannot make data_dir {path}: {exc.strerror}") from exc
    return path


def database_url(settings: Settings) -> str:
    """The database's address, with the driver named that is installed."""
    url = settings.pool.database_url
    if not url:
        return f"sqlite:///{data_dir(settings) / 'pool.db'}"
    scheme, _, rest = url.partition("://")
    return f"postgresql+psycopg://{rest}" if scheme in {"postgres", "postgresql"} else url


def broker_url(settings: Settings) -> str:
    """The broker's address; without a setting, the one that the running embedded server wrote down."""
    if settings.pool.broker_url:
        return _checked(settings.pool.broker_url)
    try:
        url = (data_dir(settings) / BROKER_FILE).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        url = ""
    except (OSError, ValueError) as exc:
        raise PoolError(f"cannot read {data_dir(settings) / BROKER_FILE}: {exc}") from exc
    if not url:
        raise PoolError("no broker: set broker_url or start one with `warmpool up`")
    return url


def _checked(url: str) -> str:
    """A URL that asks for TLS asks for a checked certificate, unless it says otherwise. Without the word kombu would speak no TLS at all."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or "ssl_cert_reqs" in dict(parse_qsl(parts.query)):
        return url
    return urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))))


def master_key(settings: Settings) -> bytes:
    """The key that all workers' keys derive from; without a setting, the one under data_dir, made by whoever comes first."""
    text = settings.pool.master_key.strip() or _kept_key(made_data_dir(settings) / KEY_FILE)
    return text.encode()


def has_master_key(settings: Settings) -> bool:
    """Whether there is one without making it."""
    return bool(settings.pool.master_key.strip()) or (data_dir(settings) / KEY_FILE).is_file()


def keyring(settings: Settings) -> Keyring:
    """All master keys that are honoured."""
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
        raise PoolError(f"cannot keep the master key in {path}: {exc}; set master_key instead") from exc
    if len(text) < LEAST_KEY_CHARS:
        raise PoolError(
            f"{path} holds no master key: {len(text)} characters where {LEAST_KEY_CHARS} are the least"
        )
    return text


def _make_private(path: Path) -> None:
    """A key that others could read becomes its owner's alone. One that is mounted read-only stays as it is."""
    if path.stat().st_mode & 0o077:
        with contextlib.suppress(OSError):
            path.chmod(0o600)


def _make_key(path: Path) -> None:
    """Make the key file whole or not at all. A link, unlike a rename, never replaces a key that somebody already uses."""
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
        return  # somebody was faster; theirs is the key
