"""Output of the supervisor: plain lines, and on a terminal one live line that is overwritten in place.

A closed terminal never stops the supervisor: what cannot be written is dropped.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from typing import TextIO


class Loudness(IntEnum):
    """How much is printed."""

    QUIET = 0
    NORMAL = 1


class Terminal:
    """The output of the supervisor."""

    def __init__(self, out: TextIO, *, loudness: Loudness = Loudness.NORMAL) -> None:
        self._out = out
        self._loudness = loudness
        self._live = ""
        self.is_tty = out.isatty()

    def tell(self, text: str) -> None:
        """Print a line, unless the run is quiet."""
        if self._loudness is not Loudness.QUIET:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Print a line, also in a quiet run."""
        self._write(f"{self._wiped()}{text}\n{self._live}")

    def live(self, text: str) -> None:
        """Replace the live line; an empty text removes it. Does nothing if the output is not a terminal."""
        if not self.is_tty or self._loudness is Loudness.QUIET or text == self._live:
            return
        wiped, self._live = self._wiped(), text
        self._write(wiped + text)

    def _wiped(self) -> str:
        return f"\r{' ' * len(self._live)}\r" if self._live else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._out.write(text)
            self._out.flush()
