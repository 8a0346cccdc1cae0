"""What the pool passes to a worker's program in its environment. docs/worker-image.md is the contract."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pool.core import names
from pool.core.errors import InvalidInput

log = logging.getLogger("warmpool.worker")

GRACE_S = 600.0
PORT_HINT = "PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The environment of one worker."""

    worker: str
    uid: str
    host: str
    port: int
    grace_s: float
    key: str
    status_file: Path | None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> WorkerSettings:
        """Read the environment. Raise `InvalidInput` with the name of a variable that cannot be used."""
        env = os.environ if environ is None else environ
        key_file, status_file = env.get(names.ENV_KEY_FILE), env.get(names.ENV_STATUS_FILE)
        if not key_file:
            log.warning("key_file_missing: %s is not set, every call is answered 401", names.ENV_KEY_FILE)
        return cls(
            worker=env.get(names.ENV_WORKER, ""),
            uid=env.get(names.ENV_UID, ""),
            host=env.get(names.ENV_HOST) or "0.0.0.0",  # noqa: S104 - a container listens on all addresses
            # With the local driver WARMPOOL_PORT is 0, and PORT is a port that was free at the start.
            port=_port(env, names.ENV_PORT) or _port(env, PORT_HINT) or 8080,
            grace_s=_seconds(env, names.ENV_GRACE_S, GRACE_S),
            key=_key(Path(key_file)) if key_file else "",
            status_file=Path(status_file) if status_file else None,
        )

    def write_status(self, port: int, *, ready: bool) -> None:
        """Write the status file that the local driver reads. Without one, do nothing."""
        if self.status_file is not None:
            draft = self.status_file.with_name(f"{self.status_file.name}.new")
            draft.write_text(json.dumps({"uid": self.uid, "port": port, "ready": ready}))
            draft.replace(self.status_file)


def _key(path: Path) -> str:
    try:
        key = path.read_text(encoding="ascii").strip()
        bytes.fromhex(key)
    except (OSError, ValueError) as exc:
        raise InvalidInput(names.ENV_KEY_FILE, f"names a file without a key in hex: {exc}") from exc
    return key


def _port(env: Mapping[str, str], name: str) -> int:
    text = env.get(name) or "0"
    if not (text.isascii() and text.isdigit() and int(text) < 65_536):
        raise InvalidInput(name, f"must be a port number from 0 to 65535, got {text[:80]!r}")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name)
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 1e9:
        raise InvalidInput(name, f"must be a number of seconds from 0 on, got {str(text)[:80]!r}")
    return seconds
