"""The `warmpool` command. Commands are imported when they are used, so that `--help` is there at once."""

from __future__ import annotations

from pool.cli.app import main

__all__ = ["main"]
