"""The version and the release notes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

RELEASE = runpy.run_path(str(Path(__file__).parents[2] / "deploy" / "release.py"))
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [0.1.1] - 2026-01-02\n\n- b\n\n## [0.1.0] - 2026-01-01\n\n- a\n"


def test_every_place_names_the_same_version() -> None:
    versions = RELEASE["versions"]()
    assert set(versions) == set(RELEASE["PLACES"])
    assert len(set(versions.values())) == 1


@pytest.mark.parametrize(
    ("version", "notes"), [("0.1.1", "- b\n"), ("0.1.0", "- a\n"), ("0.1", None), ("0x1.0", None)]
)
def test_release_notes_are_the_section_of_the_version(version: str, notes: str | None) -> None:
    assert RELEASE["notes"](CHANGELOG, version) == notes


def test_a_folder_that_is_no_release_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(RELEASE["NotReleasable"], match="is not a release"):
        RELEASE["build"]("0.1.0", tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_missing_tool_is_named() -> None:
    with pytest.raises(RELEASE["NotReleasable"], match="no-such-tool"):
        RELEASE["_run"](["no-such-tool"])
