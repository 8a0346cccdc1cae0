"""Write down which functions of the pool each test calls, in every process that the test starts.
Python imports this module at its start if this folder is on its path.

The folder `MUTANTS_CALLS` has the number of the current test as four bytes in `current`; a process
appends `NUMBER FILE::FUNCTION` to its own file, once per test and function.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

_ROOT = str(Path(__file__).parents[3]) + os.sep
_OURS = (_ROOT + "pool" + os.sep, _ROOT + "tasks" + os.sep)
_NUMBER = struct.Struct("=i")


class Recorder:
    """A trace function that sees calls only: it returns None, so Python does not trace lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with (folder / "current").open("r+b") as file:
            self._current = mmap.mmap(file.fileno(), _NUMBER.size)
        self._names: dict[CodeType, str | None] = {}
        self._seen: dict[CodeType, int] = {}

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> None:
        code = frame.f_code
        try:
            name = self._names[code]
        except KeyError:
            name = self._names[code] = self._name(code)
        if name is None:
            return
        number = _NUMBER.unpack_from(self._current)[0]
        if self._seen.get(code) != number:
            self._seen[code] = number
            with (self._folder / f"{os.getpid()}.calls").open("a") as file:
                file.write(f"{number} {name}\n")

    def _name(self, code: CodeType) -> str | None:
        if not code.co_filename.startswith(_OURS):
            return None
        outer = code.co_qualname.partition(".<locals>")[0]
        return f"{code.co_filename.removeprefix(_ROOT)}::{outer}"


if _folder := os.environ.get("MUTANTS_CALLS"):
    _recorder = Recorder(Path(_folder))
    threading.settrace(_recorder)
    sys.settrace(_recorder)
