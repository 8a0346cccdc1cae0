"""Checks of time budgets and of the data directory."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from pool import config
from pool.core.settings import nesting_problems
from pool.ops.doctor.finding import Finding, Installation, Level, ok


def time_budgets(installation: Installation) -> Iterator[Finding]:
    """Check that each time budget is longer than the steps inside it; otherwise work is given up while it
    still runs."""
    problems = nesting_problems(installation.settings.pool)
    for problem in problems:
        yield Finding(
            id="time_budgets",
            level=Level.BAD,
            evidence=problem,
            fix="change one of the two settings in the configuration",
        )
    if not problems:
        yield ok("time_budgets", "each time budget is longer than the steps inside it")


def data_dir(installation: Installation) -> Iterator[Finding]:
    """Check that only the owner can read the data directory, which holds the master key."""
    path = config.data_dir(installation.settings)
    if not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode)

    def close() -> str:
        path.chmod(0o700)
        return f"only the owner can read {path} now"

    if mode & 0o077:
        yield Finding(
            id="data_dir_private",
            level=Level.BAD,
            evidence=f"{path} has mode {mode:o}: other users can read its keys",
            fix=f"run: chmod 700 {path}",
            repair=close,
        )
    else:
        yield ok("data_dir_private", f"only the owner can read {path}")
