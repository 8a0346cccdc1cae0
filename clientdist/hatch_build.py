"""Build the package `warmpool` from `pool/client` and the modules that it imports.

Inside the repository all code imports `pool.*`. A service may have its own `pool` and `tasks`, so
the distribution has one top-level name: `pool.client` becomes `warmpool`, `pool.core` becomes
`warmpool._core` and `pool.broker` becomes `warmpool._broker`. An sdist contains the result; a wheel that is built from it needs no repository.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NEEDED = re.compile(r"^ *from pool\.(core|broker)(?:\.(\w+) import| import ([\w, ]+)$)", re.MULTILINE)
_NEW_NAMES = {"pool.client": "warmpool", "pool.core": "warmpool._core", "pool.broker": "warmpool._broker"}
_OLD_NAME = re.compile(r"\bpool\.(?:client|core|broker)\b")


def package(repository: Path) -> dict[str, str]:
    """Return the text of each file of the package, by its path in the distribution."""
    sources = sorted((repository / "pool" / "client").glob("*.py"))
    for path in sources:  # grows while it is read
        for room, module, several in _NEEDED.findall(path.read_text()):
            names = ["__init__", *(module or several).split(", ")]
            needed = [repository / "pool" / room / f"{name}.py" for name in names]
            sources += [each for each in needed if each not in sources]
    return {"warmpool/py.typed": ""} | {
        f"{_NEW_NAMES[f'pool.{path.parent.name}'].replace('.', '/')}/{path.name}": renamed(path.read_text())
        for path in sources
    }


def renamed(text: str) -> str:
    return _OLD_NAME.sub(lambda found: _NEW_NAMES[found[0]], text)


class ClientBuild(BuildHookInterface[Any]):
    """Include the package. In an unpacked sdist it is there already; an editable install uses the repository."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        repository = Path(self.root).parent
        if version == "editable" or not (repository / "pool" / "client").is_dir():
            return
        self._built = tempfile.TemporaryDirectory(prefix="warmpool-")
        for name, text in package(repository).items():
            path = Path(self._built.name) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        build_data["force_include"][f"{self._built.name}/warmpool"] = "warmpool"
