"""Flower as the pool runs it: read-only, with readable arguments and results, and without tokens."""

from __future__ import annotations

import copy
import os
import re
from typing import Any

from pool.core.names import ENV_FLOWER_PASSWORD

USER = "warmpool"
# Callers may send anything. Text that looks like a secret is not shown.
_SECRET = re.compile(
    r"(?i)(['\"]?\w*(?:token|password|secret|authorization|api_?key)\w*['\"]?\s*[:=]\s*)(['\"]?)[^'\",})\s]+\2"
)
_COLUMNS = "name,state,result,kwargs,received,runtime,worker,uuid"
_LIMITS = ("--max_tasks=10000", "--purge_offline_workers=60", "--persistent=False")


def arguments(host: str, port: int) -> list[str]:
    """Return Flower's command line. It does not contain the password: all users of a machine can
    read command lines.
    """
    return [
        "flower",
        f"--address={host}",
        f"--port={port}",
        "--read_only=True",
        f"--tasks_columns={_COLUMNS}",
        *_LIMITS,
    ]


def prepare(app: Any) -> None:
    """Set the password, disable reading results (they contain tokens), and format tasks."""
    if password := os.environ.get(ENV_FLOWER_PASSWORD):
        os.environ["FLOWER_BASIC_AUTH"] = f"{USER}:{password}"
    app.conf.result_backend = "disabled://"
    import flower.options  # noqa: F401 - defines the option set below
    from tornado.options import options

    options.format_task = shown


def shown(task: Any) -> Any:
    """Return a task as Flower shows it. Lists pass pairs of an id and a task."""
    if isinstance(task, tuple):
        return task[0], shown(copy.copy(task[1]))
    for field in ("args", "kwargs", "result", "exception", "traceback"):
        if isinstance(text := getattr(task, field, None), str):
            setattr(task, field, redacted(text))
    return task


def redacted(text: str) -> str:
    """Return the text without anything that looks like a secret."""
    return _SECRET.sub(r"\1\2***\2", text)
