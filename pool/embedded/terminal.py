"""Saying things: plain lines, and on a terminal one live line that is overwritten in place.

A terminal that is gone never stops the supervisor: what can not be written is dropped.
"""

from __future__ import annotations

import contextlib
from enum import IntEnum
from typing import TextIO


class Loudness(IntEnum):
    """How much is said."""

    QUIET = 0
    NORMAL = 1


class Terminal:
    """Where the supervisor talks."""

    def __init__(self, out: TextIO, *, loudness: Loudness = Loudness.NORMAL) -> None:
        self._out = out
        self._loudness = loudness
        self._live = ""
        self.is_tty = out.isatty()

    def tell(self, text: str) -> None:
        """A line of ordinary news; quiet runs leave it out."""
        if self._loudness is not Loudness.QUIET:
            self.warn(text)

    def warn(self, text: str) -> None:
        """A line that is always said."""
        self._write(f"{self._wiped()}{text}\n{self._live}")

    def live(self, text: str) -> None:
        """Replace the live line; empty removes it. Nothing where lines can not be overwritten."""
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
