"""The rules of docs/worker-image.md, each tried over HTTP. A rule returns what was seen, or raises
`RuleBroken` or `RuleSkipped`.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable

from pool.client.worker_target import CALL_S, GRACE_S, CheckedWorker, RuleBroken, RuleSkipped
from pool.core import names, tokens
from pool.core.clock import SystemClock

_LOOK_EVERY_S = 0.05
_NEVER = threading.Event()
_CLOCK = SystemClock()


def _ready(target: CheckedWorker) -> str:
    path, give_up = target.options.readiness_path, _CLOCK.monotonic() + target.options.ready_s
    while True:
        if target.process is not None and target.process.poll() is not None:
            raise RuleBroken(f"the program ended with exit code {target.process.returncode}")
        try:
            status = target.call("GET", path).status
            seen = f"answered {status}"
            if 200 <= status < 300:
                break
        except RuleBroken as exc:
            seen = str(exc)
        if _CLOCK.monotonic() >= give_up:
            place = "the port in PORT" if target.process else target.base
            raise RuleBroken(
                f"GET {path} on {place} must answer 2xx within {target.options.ready_s:.0f} s: {seen}"
            )
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)
    return f"GET {path} answers {status}, without a token"


def _self_report(target: CheckedWorker) -> str:
    seen = target.report()
    if target.process is not None and seen["open"]:
        raise RuleBroken(f'GET /sessions of a fresh worker: "open" must be 0, got {seen["open"]}')
    if not target.process:
        # The highest epoch that this worker has seen: the check goes on from there.
        epoch = seen.get("epoch", 0)
        target.epoch = epoch if isinstance(epoch, int) and epoch >= 0 else 0
        if seen["open"]:
            raise RuleBroken("the worker is in use; check one that no claim holds")
    return f'GET /sessions answers {{"open": {seen["open"]}}}, without a token'


def _no_token(target: CheckedWorker) -> str:
    _expect(target, 401, {}, "without a token")
    return "a request without a token is answered 401"


def _wrong_tokens(target: CheckedWorker) -> str:
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


def _right_token(target: CheckedWorker) -> str:
    claim, epoch = target.next_holder()
    status = _accepted(target, claim, epoch)
    return f"the holder's {target.options.path} is answered {status}"


def _epochs(target: CheckedWorker) -> str:
    old, new = target.next_holder(), target.next_holder()
    _accepted(target, *old)
    _accepted(target, *new)
    _expect(target, 409, target.held(*old), "with an epoch below the highest one seen")
    _expect(target, 409, target.held("c-other", new[1]), "of another claim with the same epoch")
    _accepted(target, *new)
    return "an older epoch, and a second claim of one epoch, are answered 409"


def _sessions(target: CheckedWorker) -> str:
    headers = target.held(*target.next_holder())
    status = target.call("POST", "/sessions", headers, b"").status
    if status in (404, 405, 501):
        raise RuleSkipped(f"POST /sessions answered {status}: no sessions that last longer than a request")
    if status not in (200, 201, 204):
        raise RuleBroken(f"POST /sessions of the holder answered {status}, not 2xx")
    if target.report()["open"] < 1:
        raise RuleBroken('"open" must be at least 1 while a session is open')
    if (status := target.call("DELETE", "/sessions", headers).status) not in (200, 204):
        raise RuleBroken(f"DELETE /sessions of the holder answered {status}, not 2xx")
    _await_unused(target, "after the session was closed")
    for method in ("POST", "DELETE"):
        if (status := target.call(method, "/sessions", {}, b"").status) != 401:
            raise RuleBroken(f"{method} /sessions without a token must be answered 401, got {status}")
    target.call("POST", "/sessions", target.held(*target.next_holder()), b"")
    _accepted(target, *target.next_holder())
    _await_unused(target, "after a newer holder came: it closes the session of the holder before")
    return "a session opens, counts and closes, also if a newer holder comes"


def _activation(target: CheckedWorker) -> str:
    path = target.options.activation_path
    if not path:
        raise RuleSkipped("no --activation-path was given")
    body = json.dumps({"org": "check"}).encode()
    kind = {"Content-Type": "application/json"}
    if (status := target.call("POST", path, kind, body).status) != 401:
        raise RuleBroken(f"POST {path} without a token must be answered 401, got {status}")
    status = target.call("POST", path, target.held(*target.next_holder()) | kind, body).status
    if not 200 <= status < 300:
        raise RuleBroken(f"POST {path} of the holder must be answered 2xx, got {status}")
    return f"POST {path} is answered {status}"


def _unused(target: CheckedWorker) -> str:
    _await_unused(target, "when every request was answered")
    return "no request is counted as open after its answer"


def _drain(target: CheckedWorker) -> str:
    process = target.process
    if process is None:
        raise RuleSkipped("only with --command: a running worker is not stopped")
    headers = target.held(*target.next_holder())
    has_session = target.call("POST", "/sessions", headers, b"").status in (200, 201, 204)
    process.send_signal(signal.SIGTERM)
    if has_session:
        _await_refusal(target)
        if process.poll() is not None:
            raise RuleBroken(
                f"the program ended with exit code {process.returncode} while a session was open; "
                f"it must wait up to {names.ENV_GRACE_S}"
            )
        if target.call("GET", target.options.path, headers).status == 503:
            raise RuleBroken("while it drains, the holder of the open session must be served, got 503")
        if target.report()["open"] < 1:
            raise RuleBroken('while it drains, "open" must still count the open session')
        target.call("DELETE", "/sessions", headers)
    try:
        code = process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        raise RuleBroken(
            f"the program must end after SIGTERM when no session is open; it ran for {GRACE_S} s more"
        ) from None
    if code not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        raise RuleBroken(f"the program must end with exit code 0 after SIGTERM, got {code}")
    waited = "waits for the open session, then ends" if has_session else "ends"
    return f"after SIGTERM the program {waited} with exit code {code}"


def _await_unused(target: CheckedWorker, when: str) -> None:
    """Wait until no request is open: a server may count one until it has closed the connection."""
    give_up = _CLOCK.monotonic() + CALL_S / 2
    while count := target.report()["open"]:
        if _CLOCK.monotonic() >= give_up:
            raise RuleBroken(f'"open" must be 0 {when}, got {count}')
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)


def _await_refusal(target: CheckedWorker) -> None:
    """Wait until the readiness path is not answered 2xx any more."""
    give_up = _CLOCK.monotonic() + CALL_S
    while True:
        try:
            status = target.call("GET", target.options.readiness_path).status
        except RuleBroken:
            return
        if not 200 <= status < 300:
            return
        if _CLOCK.monotonic() >= give_up:
            path = target.options.readiness_path
            raise RuleBroken(f"GET {path} must be answered 503 while the worker drains, got {status}")
        _CLOCK.wait(_NEVER, _LOOK_EVERY_S)


def _accepted(target: CheckedWorker, claim: str, epoch: int) -> int:
    status = target.call("GET", target.options.path, target.held(claim, epoch)).status
    if status == 409:
        raise RuleBroken(
            f"the worker has seen an epoch above {epoch}, which GET /sessions does not report as "
            '"epoch": start it again, then check it'
        )
    if status in (401, 403) or status >= 500:
        raise RuleBroken(
            f"GET {target.options.path} with the right token and epoch {epoch} was answered {status}; "
            "docs/worker-image.md has test vectors for the token"
        )
    return status


def _expect(target: CheckedWorker, status: int, headers: dict[str, str], how: str) -> None:
    seen = target.call("GET", target.options.path, headers).status
    if seen != status:
        raise RuleBroken(f"GET {target.options.path} {how} must be answered {status}, got {seen}")


VITAL = frozenset({"ready", "self_report"})
PROXY_HELPS = frozenset({"self_report", "no_token"})
RULES: tuple[tuple[str, Callable[[CheckedWorker], str]], ...] = (
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
