"""The doctor: a list of checks, each of which tells what it saw, what is wrong and how to mend it. To add one, write a function that takes a
`Patient` and yields `Finding`s, and put it into `CHECKS` in `pool.doctor.checks`."""

from pool.doctor.checks import CHECKS, examine
from pool.doctor.finding import Finding, Level, Patient

__all__ = ["CHECKS", "Finding", "Level", "Patient", "examine"]
