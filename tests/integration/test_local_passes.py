"""The passes keep their contract with the local driver: pods are processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.passes import PassesContract, scene
from tests.support.local_ground import LocalGround

__all__ = ["scene"]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[LocalGround]:
    ground = LocalGround(tmp_path / "data")
    try:
        yield ground
    finally:
        ground.clear()


class TestPassesOnLocalDriver(PassesContract):
    """The contract, unchanged."""
