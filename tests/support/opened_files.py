"""Detect which files of a folder are opened, with inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Self

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 20


class OpenedFiles:
    """Names of files that any process opened since the block began."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1
        self._names: set[str] = set()

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(self._folder), _IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def names(self) -> set[str]:
        while True:
            try:
                events = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return set(self._names)
            while events:
                *_, length = _EVENT.unpack_from(events)
                name = events[_EVENT.size : _EVENT.size + length].rstrip(b"\0")
                self._names.add(os.fsdecode(name))
                events = events[_EVENT.size + length :]
