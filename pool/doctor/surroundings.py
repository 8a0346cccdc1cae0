"""What stands around the pool: time budgets that nest, a data directory that is nobody else's."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from pool import config
from pool.doctor.finding import Finding, Level, Patient, ok
from pool.settings import nesting_problems


def time_budgets(patient: Patient) -> Iterator[Finding]:
    """A budget that is shorter than what it spans frees what is still at work."""
    problems = nesting_problems(patient.settings.pool)
    for problem in problems:
        yield Finding(
            id="time_budgets",
            level=Level.BAD,
            evidence=problem,
            fix="change one of the two in the configuration",
        )
    if not problems:
        yield ok("time_budgets", "all of them nest")


def data_dir(patient: Patient) -> Iterator[Finding]:
    """It holds the master key and, embedded, everything else."""
    path = config.data_dir(patient.settings)
    if not path.exists():
        return
    mode = stat.S_IMODE(path.stat().st_mode)

    def close() -> str:
        path.chmod(0o700)
        return f"{path} is now its owner's alone"

    if mode & 0o077:
        yield Finding(
            id="data_dir_private",
            level=Level.BAD,
            evidence=f"{path} has mode {mode:o}: others can read its keys",
            fix=f"chmod 700 {path}",
            repair=close,
        )
    else:
        yield ok("data_dir_private", f"{path} is its owner's alone")
