"""The whole pool keeps its contract with the local driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.pool import PoolContract, deployment, driver, folder, pool, system
from tests.support.local_ground import LocalGround

__all__ = ["deployment", "driver", "folder", "pool", "system"]

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ground(folder: Path) -> LocalGround:
    return LocalGround(folder / "local")


class TestPoolOnLocalDriver(PoolContract):
    """The contract, unchanged."""
