"""`python -m warmpool.worker`: the proxy and the check, for images that have only the client.

`warmpool worker-proxy` and `warmpool worker check` of the server are the same.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pool.client import worker_check
from pool.client.worker_target import CheckOptions
from pool.core.errors import InvalidInput, PoolError

PROXY_HELP = """\
Run a program as a worker of the pool: start it on a loopback port, and pass on the requests of the
current holder only.

The program needs no change. It must listen on the port in the variable PORT, on 127.0.0.1 (or on
--port, if its port is fixed). It never sees the worker's key. The proxy listens on WARMPOOL_PORT,
answers /sessions and /healthz, checks token and epoch of everything else, and streams bodies and
WebSockets in both directions. On SIGTERM it waits for open sessions, then stops the program.

Exit code: 0 after SIGTERM, the program's own (or 1) if the program ended by itself.
"""
CHECK_HELP = """\
Check that a worker follows the contract of docs/worker-image.md, and print one line per rule.

With --command the program is started with a key, as the pool would start it, and stopped at the end:

    warmpool worker check --command node worker.js

With a URL a running worker is checked, with the file that has its key. Check only a worker that no
claim holds: its epoch is raised, so its pod can serve no claim of the pool afterwards.

    warmpool worker check --key-file key http://127.0.0.1:8080

Exit code: 0 if every rule is kept, 1 if one is not, 2 if the command line is wrong.
"""


def check_options(
    *, url: str, key_file: Path | None, command: Sequence[str], paths: tuple[str, str, str], ready_s: float
) -> CheckOptions:
    """Return the options of a check; `paths` are those of a request, of readiness and of activation."""
    for name, path in zip(("path", "readiness-path", "activation-path"), paths, strict=True):
        if path and not path.startswith("/"):
            raise InvalidInput(f"--{name}", f"must begin with a slash, got {path!r}")
    key = ""
    if key_file is not None:
        try:
            key = key_file.read_text(encoding="ascii").strip()
            bytes.fromhex(key)
        except (OSError, ValueError) as exc:
            raise InvalidInput("--key-file", f"names a file without a key in hex: {exc}") from exc
    path, readiness_path, activation_path = paths
    return CheckOptions(
        url=url,
        key=key,
        command=command,
        path=path,
        readiness_path=readiness_path,
        activation_path=activation_path,
        ready_s=ready_s,
    )


def run_check(options: CheckOptions, *, as_json: bool) -> tuple[str, int]:
    """Return the report and the exit code."""
    lines = worker_check.check(options)
    kept = worker_check.kept(lines)
    if as_json:
        text = json.dumps({"kept": kept, "rules": [line.as_dict() for line in lines]}, indent=2) + "\n"
    else:
        text = worker_check.as_text(lines)
    return text, 0 if kept else 1


def run_proxy(command: Sequence[str], *, port: int, connections: int) -> int:
    """Run the proxy in this process until a signal. Return the exit code."""
    from pool.client import worker_proxy

    if not command:
        raise InvalidInput("command", "is missing: warmpool worker-proxy -- CMD [ARGUMENT ...]")
    if not 0 <= port <= 65_535:
        raise InvalidInput("--port", f"must be a port number from 0 to 65535, got {port}")
    if connections < 1:
        raise InvalidInput("--connections", f"must be at least 1, got {connections}")
    logging.basicConfig(level=logging.INFO, format="warmpool worker-proxy: %(message)s", stream=sys.stderr)
    return worker_proxy.run(
        worker_proxy.ProxyOptions(command=tuple(command), port=port, connections=connections)
    )


def main(argv: Sequence[str]) -> int:
    """Run one command line. Return the exit code."""
    own, command = _split(argv)
    words = _parser().parse_args(own)
    try:
        if words.verb == "proxy":
            return run_proxy(command, port=words.port, connections=words.connections)
        options = check_options(
            url=words.url,
            key_file=words.key_file,
            command=command,
            paths=(words.path, words.readiness_path, words.activation_path),
            ready_s=words.ready_s,
        )
        text, code = run_check(options, as_json=words.json)
    except PoolError as exc:
        sys.stderr.write(f"warmpool: {getattr(exc, 'detail', '') or exc}\n")
        return 2
    sys.stdout.write(text)
    return code


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return our own words, and the program with its arguments, which may contain any option."""
    words = list(argv)
    mark = {"proxy": "--", "check": "--command"}.get(words[0] if words else "")
    if mark not in words:
        return words, []
    at = words.index(mark)
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m warmpool.worker", description="Run or check a worker.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    proxy = verbs.add_parser(
        "proxy", help="run a program behind a proxy", description=PROXY_HELP, formatter_class=plain
    )
    proxy.add_argument(
        "--port", type=int, default=0, help="port of the program; default: a free one, in PORT"
    )
    proxy.add_argument("--connections", type=int, default=256, help="most requests at the same time")
    proxy.usage = "python -m warmpool.worker proxy [--port N] [--connections N] -- CMD [ARGUMENT ...]"
    check = verbs.add_parser("check", help="check a worker", description=CHECK_HELP, formatter_class=plain)
    check.add_argument(
        "url", nargs="?", default="", help="address of a running worker, such as http://127.0.0.1:8000"
    )
    check.add_argument("--key-file", type=Path, help="file with the key of the running worker, in hex")
    check.add_argument("--path", default="/", help="a path that the program serves to its holder")
    check.add_argument("--readiness-path", default="/healthz", help="readiness_path of the profile")
    check.add_argument("--activation-path", default="", help="activation_path of the profile, if any")
    check.add_argument("--ready-s", type=float, default=30.0, help="longest time to become ready, in seconds")
    check.add_argument("--json", action="store_true", help="print the report as JSON")
    check.usage = "python -m warmpool.worker check [OPTION ...] (URL --key-file FILE | --command CMD ...)"
    return parser
