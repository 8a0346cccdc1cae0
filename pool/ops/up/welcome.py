"""The text that `up` prints once everything is ready: addresses, directories, and an example
command to copy.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pool.config.environment import variable
from pool.core.names import ENV_CONFIG
from pool.ops.up.datadir import DataDir

_EXAMPLE = """acquire --org acme -- sh -c 'curl -s -K "$WARMPOOL_CURL_CONFIG" "$WARMPOOL_ENDPOINT/echo"'"""


# Variables that another terminal needs too if they are set here; both may contain a password.
_ADDRESSES = (variable("database_url"), variable("broker_url"))


def lines(
    data_dir: DataDir,
    *,
    places: Sequence[tuple[str, str]],
    config: Path | None,
    environment: Mapping[str, str],
    stops: str = "everything",
) -> list[str]:
    """Return the welcome text, line by line. `places` are names and addresses. Passwords of servers are not
    shown."""
    given = {name: environment[name] for name in _ADDRESSES if environment.get(name)}
    secret = [name for name, url in given.items() if urlsplit(url).password]
    where = (
        f"to try it, set {' and '.join(secret)} in another terminal as in this one, and run there:"
        if secret
        else "to try it, run in another terminal:"
    )
    shown = {name: url for name, url in given.items() if name not in secret}
    return [
        "",
        f"the pool is ready; Ctrl-C stops {stops}",
        "",
        *(f"  {name:8} {text}" for name, text in places),
        f"  {'data':8} {data_dir.root}",
        f"  {'logs':8} {data_dir.logs}",
        "",
        where,
        "",
        f"  {_variables(data_dir, config, shown)} {command()} {_EXAMPLE}",
        "",
    ]


def command() -> str:
    """Return the command that runs this installation from any directory."""
    beside = Path(sys.executable).parent / "warmpool"
    if beside.exists():
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m pool.ops.cli"


def _variables(data_dir: DataDir, config: Path | None, addresses: Mapping[str, str]) -> str:
    named = {variable("data_dir"): data_dir.root} | ({ENV_CONFIG: config} if config else {})
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in {**named, **addresses}.items())
