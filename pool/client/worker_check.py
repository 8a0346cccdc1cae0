"""Check that a program follows the worker contract: every rule tried over HTTP, one line for each.

The rules are those of docs/worker-image.md. A program that is started here also shows that it becomes
ready and drains.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pool.client.worker_child import HOST, free_port
from pool.core import names, tokens
from pool.core.clock import SystemClock
from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds

_CALL_S = 5.0
_MOST_BODY_BYTES = 65_536
_LOOK_EVERY_S = 0.05
_GRACE_S = 20
_NEVER = threading.Event()
_CLOCK = SystemClock()


class RuleResult(StrEnum):
    """How one rule of the contract was kept."""

    PASSED = "ok"
    FAILED = "FAIL"
    SKIPPED = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """One line of the report."""

    rule: str
    result: RuleResult
    text: str

    def as_dict(self) -> dict[str, str]:
        return {"rule": self.rule, "result": str(self.result), "text": self.text}


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
class _Reply:
    status: int
    body: bytes

    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _Broken(Exception):
    """The rule is not kept; the text is what was seen."""


class _Skipped(Exception):
    """The rule does not apply; the text is the reason."""


@dataclass(slots=True)
class _Target:
    """A worker under check. Each request of a holder uses the newest epoch unless it names another."""

    options: CheckOptions
    base: str
    key: str
    epoch: int = 0
    process: subprocess.Popen[bytes] | None = None
    ids: RandomIds = field(default_factory=RandomIds)

    def call(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes | None = None
    ) -> _Reply:
        parts = urlsplit(self.base)
        connection = http.client.HTTPConnection(parts.hostname or HOST, parts.port or 80, timeout=_CALL_S)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return _Reply(response.status, response.read(_MOST_BODY_BYTES))
        except (OSError, http.client.HTTPException) as exc:
            raise _Broken(f"{method} {path} got no answer: {type(exc).__name__}: {exc}") from exc
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
            raise _Broken(f"GET /sessions answered {reply.status}, not 200 with a JSON object")
        count = seen.get("open")
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise _Broken(f'GET /sessions: "open" must be a number of sessions, got {count!r}')
        return seen


def check(options: CheckOptions) -> list[RuleLine]:
    """Try every rule. The first one that makes the others pointless ends the run."""
    with _target(options) as target:
        lines = []
        for rule, attempt in _RULES:
            lines.append(_tried(rule, attempt, target))
            if rule in _VITAL and lines[-1].result is RuleResult.FAILED:
                break
        return lines


def kept(lines: Sequence[RuleLine]) -> bool:
    return all(line.result is not RuleResult.FAILED for line in lines)


def as_text(lines: Sequence[RuleLine]) -> str:
    """Return the report for people: one line per rule, then the sum."""
    width = max(len(line.rule) for line in lines)
    shown = [f"{line.result:4}  {line.rule:{width}}  {line.text}" for line in lines]
    failed = sum(line.result is RuleResult.FAILED for line in lines)
    tried = sum(line.result is not RuleResult.SKIPPED for line in lines)
    total = f"{failed} of {tried} rules failed" if failed else f"all {tried} rules passed"
    if any(line.rule in _PROXY_HELPS and line.result is RuleResult.FAILED for line in lines):
        total += "\na program that cannot check tokens runs behind the proxy: warmpool worker-proxy -- CMD"
    return "\n".join([*shown, "", total, ""])


def _tried(rule: str, attempt: Callable[[_Target], str], target: _Target) -> RuleLine:
    try:
        return RuleLine(rule=rule, result=RuleResult.PASSED, text=attempt(target))
    except _Broken as exc:
        return RuleLine(rule=rule, result=RuleResult.FAILED, text=str(exc))
    except _Skipped as exc:
        return RuleLine(rule=rule, result=RuleResult.SKIPPED, text=str(exc))


@contextlib.contextmanager
def _target(options: CheckOptions) -> Iterator[_Target]:
    if bool(options.url) == bool(options.command):
        raise InvalidInput("worker", "give either the URL of a running worker, or --command")
    if options.url:
        if not _is_address(options.url):
            raise InvalidInput("url", f"must be http://HOST:PORT, got {options.url!r}")
        if not options.key:
            raise InvalidInput("key", "of the running worker is needed: --key-file FILE")
        yield _Target(options, options.url.rstrip("/"), options.key)
        return
    with tempfile.TemporaryDirectory(prefix="warmpool-check-") as folder:
        yield from _started(options, Path(folder))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port, or an IPv6 address
        return False


def _started(options: CheckOptions, folder: Path) -> Iterator[_Target]:
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
        names.ENV_GRACE_S: str(_GRACE_S),
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
        yield _Target(options, f"http://{HOST}:{port}", key, process=process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ready(target: _Target) -> str:
    path, give_up = target.options.readiness_path, _CLOCK.monotonic() + target.options.ready_s
    while True:
        if target.process is not None and target.process.poll() is not None:
            raise _Broken(f"the program ended with exit code {target.process.returncode}")
        try:
            status = target.call("GET", path).status
            seen = f"answered {status}"
            if 200 <= status < 300:
                break
        except _Broken as exc:
            seen = str(exc)
        if _CLOCK.monotonic() >= give_up:
            place = "the port in PORT" if target.process else target.base
            raise _Broken(
                f"GET {path} on {place} must answer 2xx within {target.options.ready_s:.0f} s: {seen}"
            )
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)
    return f"GET {path} answers {status}, without a token"


def _self_report(target: _Target) -> str:
    seen = target.report()
    if target.process is not None and seen["open"]:
        raise _Broken(f'GET /sessions of a fresh worker: "open" must be 0, got {seen["open"]}')
    if not target.process:
        # The highest epoch that this worker has seen: the check goes on from there.
        epoch = seen.get("epoch", 0)
        target.epoch = epoch if isinstance(epoch, int) and epoch >= 0 else 0
        if seen["open"]:
            raise _Broken("the worker is in use; check one that no claim holds")
    return f'GET /sessions answers {{"open": {seen["open"]}}}, without a token'


def _no_token(target: _Target) -> str:
    _expect(target, 401, {}, "without a token")
    return "a request without a token is answered 401"


def _wrong_tokens(target: _Target) -> str:
    claim, epoch = "c-check0", target.epoch + 1
    good = target.held(claim, epoch)
    token = good["Authorization"].removeprefix("Bearer ")
    _expect(target, 401, target.held(claim, epoch, key="00" * 32), "with a token of another key")
    _expect(target, 401, good | {tokens.HEADER_CLAIM: "c-other"}, "with the token of another claim")
    _expect(target, 401, good | {tokens.HEADER_EPOCH: str(epoch + 1)}, "with the token of another epoch")
    _expect(target, 401, good | {tokens.HEADER_EPOCH: f"+{epoch}"}, "with an epoch that is not only digits")
    _expect(target, 401, target.held(claim, 10**19), "with an epoch of 20 digits")
    _expect(target, 401, good | {"Authorization": token}, "without the word Bearer")
    _expect(target, 401, good | {"Authorization": f"Bearer {token[:-2]}"}, "with a shortened token")
    missing = {name: value for name, value in good.items() if name != tokens.HEADER_EPOCH}
    _expect(target, 401, missing, f"without {tokens.HEADER_EPOCH}")
    return "wrong tokens, and tokens of another claim, epoch or key, are answered 401"


def _right_token(target: _Target) -> str:
    claim, epoch = target.next_holder()
    status = _accepted(target, claim, epoch)
    return f"the holder's {target.options.path} is answered {status}"


def _epochs(target: _Target) -> str:
    old, new = target.next_holder(), target.next_holder()
    _accepted(target, *old)
    _accepted(target, *new)
    _expect(target, 409, target.held(*old), "with an epoch below the highest one seen")
    _expect(target, 409, target.held("c-other", new[1]), "of another claim with the same epoch")
    _accepted(target, *new)
    return "an older epoch, and a second claim of one epoch, are answered 409"


def _sessions(target: _Target) -> str:
    headers = target.held(*target.next_holder())
    status = target.call("POST", "/sessions", headers, b"").status
    if status in (404, 405, 501):
        raise _Skipped(f"POST /sessions answered {status}: no sessions that last longer than a request")
    if status not in (200, 201, 204):
        raise _Broken(f"POST /sessions of the holder answered {status}, not 2xx")
    if target.report()["open"] < 1:
        raise _Broken('"open" must be at least 1 while a session is open')
    if (status := target.call("DELETE", "/sessions", headers).status) not in (200, 204):
        raise _Broken(f"DELETE /sessions of the holder answered {status}, not 2xx")
    _await_unused(target, "after the session was closed")
    for method in ("POST", "DELETE"):
        if (status := target.call(method, "/sessions", {}, b"").status) != 401:
            raise _Broken(f"{method} /sessions without a token must be answered 401, got {status}")
    target.call("POST", "/sessions", target.held(*target.next_holder()), b"")
    _accepted(target, *target.next_holder())
    _await_unused(target, "after a newer holder came: it closes the session of the holder before")
    return "a session opens, counts and closes, also if a newer holder comes"


def _activation(target: _Target) -> str:
    path = target.options.activation_path
    if not path:
        raise _Skipped("no --activation-path was given")
    body = json.dumps({"org": "check"}).encode()
    kind = {"Content-Type": "application/json"}
    if (status := target.call("POST", path, kind, body).status) != 401:
        raise _Broken(f"POST {path} without a token must be answered 401, got {status}")
    status = target.call("POST", path, target.held(*target.next_holder()) | kind, body).status
    if not 200 <= status < 300:
        raise _Broken(f"POST {path} of the holder must be answered 2xx, got {status}")
    return f"POST {path} is answered {status}"


def _unused(target: _Target) -> str:
    _await_unused(target, "when every request was answered")
    return "no request is counted as open after its answer"


def _drain(target: _Target) -> str:
    process = target.process
    if process is None:
        raise _Skipped("only with --command: a running worker is not stopped")
    headers = target.held(*target.next_holder())
    has_session = target.call("POST", "/sessions", headers, b"").status in (200, 201, 204)
    process.send_signal(signal.SIGTERM)
    if has_session:
        _await_refusal(target)
        if process.poll() is not None:
            raise _Broken(
                f"the program ended with exit code {process.returncode} while a session was open; "
                f"it must wait up to {names.ENV_GRACE_S}"
            )
        if target.call("GET", target.options.path, headers).status == 503:
            raise _Broken("while it drains, the holder of the open session must be served, got 503")
        if target.report()["open"] < 1:
            raise _Broken('while it drains, "open" must still count the open session')
        target.call("DELETE", "/sessions", headers)
    try:
        code = process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        raise _Broken(
            f"the program must end after SIGTERM when no session is open; it ran for {_GRACE_S} s more"
        ) from None
    if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise _Broken(f"the program must end with exit code 0 after SIGTERM, got {code}")
    waited = "waits for the open session, then ends" if has_session else "ends"
    return f"after SIGTERM the program {waited} with exit code {code}"


def _await_unused(target: _Target, when: str) -> None:
    """Wait until no request is open: a server may count one until it has closed the connection."""
    give_up = _CLOCK.monotonic() + _CALL_S / 2
    while count := target.report()["open"]:
        if _CLOCK.monotonic() >= give_up:
            raise _Broken(f'"open" must be 0 {when}, got {count}')
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)


def _await_refusal(target: _Target) -> None:
    """Wait until the readiness path is not answered 2xx any more."""
    give_up = _CLOCK.monotonic() + _CALL_S
    while True:
        try:
            status = target.call("GET", target.options.readiness_path).status
        except _Broken:
            return
        if not 200 <= status < 300:
            return
        if _CLOCK.monotonic() >= give_up:
            path = target.options.readiness_path
            raise _Broken(f"GET {path} must be answered 503 while the worker drains, got {status}")
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)


def _accepted(target: _Target, claim: str, epoch: int) -> int:
    status = target.call("GET", target.options.path, target.held(claim, epoch)).status
    if status == 409:
        raise _Broken(
            f"the worker has seen an epoch above {epoch}, which GET /sessions does not report as "
            '"epoch": start it again, then check it'
        )
    if status in (401, 403) or status >= 500:
        raise _Broken(
            f"GET {target.options.path} with the right token and epoch {epoch} was answered {status}; "
            "docs/worker-image.md has test vectors for the token"
        )
    return status


def _expect(target: _Target, status: int, headers: dict[str, str], how: str) -> None:
    seen = target.call("GET", target.options.path, headers).status
    if seen != status:
        raise _Broken(f"GET {target.options.path} {how} must be answered {status}, got {seen}")


_VITAL = frozenset({"ready", "self_report"})
_PROXY_HELPS = frozenset({"self_report", "no_token"})
_RULES: tuple[tuple[str, Callable[[_Target], str]], ...] = (
    ("ready", _ready),
    ("self_report", _self_report),
    ("no_token", _no_token),
    ("wrong_token", _wrong_tokens),
    ("right_token", _right_token),
    ("epoch", _epochs),
    ("sessions", _sessions),
    ("activation", _activation),
    ("unused", _unused),
    ("drain", _drain),
)
