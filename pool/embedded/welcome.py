"""What `up` shows once everything is ready: where things are, and one example to copy."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from pool.embedded.datadir import DataDir

_EXAMPLE = """acquire --org acme -- sh -c 'curl -s -K "$WARMPOOL_CURL_CONFIG" "$WARMPOOL_ENDPOINT/echo"'"""


def lines(data_dir: DataDir, *, broker: str, flower_port: int | None, config: Path | None) -> list[str]:
    """The whole welcome, line by line. The broker's password is in a file, not on the screen."""
    flower = [f"  flower   http://127.0.0.1:{flower_port}/"] if flower_port else []
    return [
        "",
        "the pool is ready; Ctrl-C stops all of it",
        "",
        *flower,
        f"  broker   {broker}",
        f"  data     {data_dir.root}",
        f"  logs     {data_dir.logs}",
        "",
        "in another terminal:",
        "",
        f"  {_variables(data_dir, config)} {command()} {_EXAMPLE}",
        "",
    ]


def command() -> str:
    """How to call this very installation from anywhere."""
    beside = Path(sys.executable).parent / "warmpool"
    if beside.exists():
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m pool.cli"


def _variables(data_dir: DataDir, config: Path | None) -> str:
    named = {"WARMPOOL_DATA_DIR": data_dir.root} | ({"WARMPOOL_CONFIG": config} if config else {})
    return " ".join(f"{name}={shlex.quote(str(path))}" for name, path in named.items())
