"""File modes of the data directory: only its owner may read or change anything in it, whatever the modes were
before."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from pool.core.errors import PoolError

# For files that the supervisor and its children create.
PRIVATE_UMASK = 0o077
_OTHERS = 0o077
_OUR_FOLDERS = ("run", "logs", "redis", "postgres", "local")
_OUR_FILES = ("master.key",)


def make_private(root: Path) -> None:
    """Remove the permissions of other users from the directory and the pool's files in it. Links are not
    followed."""
    if root.stat().st_mode & stat.S_ISVTX:
        raise PoolError(
            f"data_dir {root} is a shared directory (it has the sticky bit): choose a directory "
            "for the pool only"
        )
    for path in _ours(root):
        try:
            _take_from_others(path)
        except FileNotFoundError:
            continue  # a running component has just removed it
        except OSError as exc:
            raise PoolError(
                f"cannot remove the permissions of other users from {path}: {exc.strerror}; "
                "the file must belong to the user that runs warmpool"
            ) from exc


def _ours(root: Path) -> Iterator[Path]:
    yield root
    for pattern in _OUR_FILES:
        yield from root.glob(pattern)
    for name in _OUR_FOLDERS:
        yield root / name
        for folder, folders, files in os.walk(root / name):
            yield from (Path(folder) / found for found in (*folders, *files))


def _take_from_others(path: Path) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISLNK(mode) and mode & _OTHERS:
        path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
