"""What `up` shows once everything is ready: where things are, and one example to copy."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pool.embedded.datadir import DataDir

_EXAMPLE = """acquire --org acme -- sh -c 'curl -s -K "$WARMPOOL_CURL_CONFIG" "$WARMPOOL_ENDPOINT/echo"'"""


# What another terminal has to be told if it is told here; both may hold a password.
_ADDRESSES = ("WARMPOOL_DATABASE_URL", "WARMPOOL_BROKER_URL")


def lines(
    data_dir: DataDir,
    *,
    places: Sequence[tuple[str, str]],
    config: Path | None,
    environment: Mapping[str, str],
    stops: str = "all of it",
) -> list[str]:
    """The whole welcome, line by line. `places` are names and where they are; no password is shown."""
    given = {name: environment[name] for name in _ADDRESSES if environment.get(name)}
    secret = [name for name, url in given.items() if urlsplit(url).password]
    where = (
        f"in another terminal, with {' and '.join(secret)} as in this one:"
        if secret
        else "in another terminal:"
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
    """How to call this very installation from anywhere."""
    beside = Path(sys.executable).parent / "warmpool"
    if beside.exists():
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m pool.cli"


def _variables(data_dir: DataDir, config: Path | None, addresses: Mapping[str, str]) -> str:
    named = {"WARMPOOL_DATA_DIR": data_dir.root} | ({"WARMPOOL_CONFIG": config} if config else {})
    return " ".join(f"{name}={shlex.quote(str(value))}" for name, value in {**named, **addresses}.items())
