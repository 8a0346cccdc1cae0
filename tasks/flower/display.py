"""Flower, as the pool runs it: it looks and does not touch, shows what was asked and answered in words, and never a token."""

from __future__ import annotations

import copy
import os
import re
from typing import Any

from pool.core.names import ENV_FLOWER_PASSWORD

USER = "warmpool"
# Callers may send anything; what looks like a secret in it is not shown.
_SECRET = re.compile(
    r"(?i)(['\"]?\w*(?:token|password|secret|authorization|api_?key)\w*['\"]?\s*[:=]\s*)(['\"]?)[^'\",})\s]+\2"
)
_COLUMNS = "name,state,result,kwargs,received,runtime,worker,uuid"
_LIMITS = ("--max_tasks=10000", "--purge_offline_workers=60", "--persistent=False")


def arguments(host: str, port: int) -> list[str]:
    """Flower's command line. The password is not on it: every user of a machine may read command lines."""
    return [
        "flower",
        f"--address={host}",
        f"--port={port}",
        "--read_only=True",
        f"--tasks_columns={_COLUMNS}",
        *_LIMITS,
    ]


def prepare(app: Any) -> None:
    """Before it starts: its password, no way to fetch results (they hold tokens), and what tasks look like."""
    if password := os.environ.get(ENV_FLOWER_PASSWORD):
        os.environ["FLOWER_BASIC_AUTH"] = f"{USER}:{password}"
    app.conf.result_backend = "disabled://"
    import flower.options  # noqa: F401 - defines what is set below
    from tornado.options import options

    options.format_task = shown


def shown(task: Any) -> Any:
    """A task as Flower shows it. The list hands over pairs of an id and a task."""
    if isinstance(task, tuple):
        return task[0], shown(copy.copy(task[1]))
    for field in ("args", "kwargs", "result", "exception", "traceback"):
        if isinstance(text := getattr(task, field, None), str):
            setattr(task, field, redacted(text))
    return task


def redacted(text: str) -> str:
    """The same text without what looks like a secret."""
    return _SECRET.sub(r"\1\2***\2", text)
