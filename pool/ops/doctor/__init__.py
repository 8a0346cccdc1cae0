"""The doctor: a list of checks. Each reports what it saw, what is wrong, and how to fix it.

To add a check, write a function that takes a `Installation` and yields `Finding`s, and add it to `CHECKS` in
`pool.ops.doctor.checks`.
"""

from pool.ops.doctor.checks import CHECKS, examine
from pool.ops.doctor.finding import Finding, Installation, Level

__all__ = ["CHECKS", "Finding", "Installation", "Level", "examine"]
