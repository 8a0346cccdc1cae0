"""The `warmpool` command. Each command is imported when it is used, so that `--help` is fast."""

from __future__ import annotations

from pool.ops.cli.app import main

__all__ = ["main"]
