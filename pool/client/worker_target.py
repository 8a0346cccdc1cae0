"""The worker that is checked: a running one, or a program that is started as the pool would start it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pool.client.worker_child import HOST, free_port
from pool.core import names, tokens
from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds

CALL_S = 5.0
GRACE_S = 20
_MOST_BODY_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What to check: a running worker with its key, or a command."""

    url: str = ""
    key: str = ""
    command: Sequence[str] = ()
    path: str = "/"
    readiness_path: str = "/healthz"
    activation_path: str = ""
    ready_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CheckReply:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class RuleBroken(Exception):
    """The rule is not kept; the text is what was seen."""


class RuleSkipped(Exception):
    """The rule does not apply; the text is the reason."""


@dataclass(slots=True)
class CheckedWorker:
    """A worker under check. Each request of a holder uses the newest epoch unless it names another."""

    options: CheckOptions
    base: str
    key: str
    epoch: int = 0
    process: subprocess.Popen[bytes] | None = None
    ids: RandomIds = field(default_factory=RandomIds)

    def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> CheckReply:
        parts = urlsplit(self.base)
        connection = http.client.HTTPConnection(parts.hostname or HOST, parts.port or 80, timeout=CALL_S)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return CheckReply(response.status, response.read(_MOST_BODY_BYTES))
        except (OSError, http.client.HTTPException) as exc:
            raise RuleBroken(f"{method} {path} got no answer: {type(exc).__name__}: {exc}") from exc
        finally:
            connection.close()

    def held(self, claim: str, epoch: int, key: str = "") -> dict[str, str]:
        """Return the headers of a holder."""
        return tokens.headers(claim, epoch, tokens.token(key or self.key, claim, epoch))

    def next_holder(self) -> tuple[str, int]:
        self.epoch += 1
        return f"c-check{self.epoch}", self.epoch

    def report(self) -> dict[str, Any]:
        reply = self.call("GET", "/sessions")
        seen = reply.json()
        if reply.status != 200 or not isinstance(seen, dict):
            raise RuleBroken(f"GET /sessions answered {reply.status}, not 200 with a JSON object")
        count = seen.get("open")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise RuleBroken(f'GET /sessions: "open" must be a number of sessions, got {count!r}')
        return seen


@contextlib.contextmanager
def worker_under_check(options: CheckOptions) -> Iterator[CheckedWorker]:
    if bool(options.url) == bool(options.command):
        raise InvalidInput("worker", "give either the URL of a running worker, or --command")
    if options.url:
        if not _is_address(options.url):
            raise InvalidInput("url", f"must be http://HOST:PORT, got {options.url!r}")
        if not options.key:
            raise InvalidInput("key", "of the running worker is needed: --key-file FILE")
        yield CheckedWorker(options, options.url.rstrip("/"), options.key)
        return
    with tempfile.TemporaryDirectory(prefix="warmpool-check-") as folder:
        yield from _started(options, Path(folder))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or an IPv6 address
        return False


def _started(options: CheckOptions, folder: Path) -> Iterator[CheckedWorker]:
    ids, port = RandomIds(), free_port()
    key = tokens.worker_key(ids.token().encode(), "w-check")
    key_file = folder / "key"
    key_file.write_text(key + "\n")
    env = os.environ | {
        names.ENV_WORKER: "w-check",
        names.ENV_UID: ids.token(),
        names.ENV_PROFILE: "check",
        names.ENV_HOST: HOST,
        names.ENV_PORT: str(port),
        "PORT": str(port),
        names.ENV_KEY_FILE: str(key_file),
        names.ENV_STATUS_FILE: str(folder / "status"),
        names.ENV_GRACE_S: str(GRACE_S),
    }
    log = folder / "log"
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(  # noqa: S603 - running the given command is the purpose
                list(options.command), env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
    except OSError as exc:
        raise InvalidInput("command", f"cannot be run: {exc.strerror}: {options.command[0]}") from exc
    try:
        yield CheckedWorker(options, f"http://{HOST}:{port}", key, process=process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
