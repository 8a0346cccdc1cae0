"""A component that runs old code is replaced: the digest changes with every source that a component
reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import pool
from pool.ops.up.components import code_version


@pytest.mark.parametrize(
    "file",
    ["pool/core/ids.py", "pool/store/sql/01_calls.sql", "pool/ops/board/templates/board.html", "tasks/app.py", "beat_schedule.py"],
)  # fmt: skip
def test_digest_changes_with_every_edit(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, edited = tmp_path / "pool" / "__init__.py", tmp_path / file
    for path in (package, edited):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    monkeypatch.setattr(pool, "__file__", str(package))
    before = code_version()
    assert code_version() == before
    edited.write_text("after it")
    assert code_version() != before


def test_compiled_files_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pool" / "__init__.py"
    package.parent.mkdir()
    package.write_text("")
    monkeypatch.setattr(pool, "__file__", str(package))
    before = code_version()
    (package.parent / "ids.cpython-311.pyc").write_bytes(b"\0")
    assert code_version() == before
