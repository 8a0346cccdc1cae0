"""The driver without processes, which most tests of verbs and passes use, passes the contract of
the real ones. All of it applies: its ground does what containers would do by themselves.
"""

from __future__ import annotations

import pytest

from pool.drivers.port import Word
from tests.contracts.driver import DriverContract
from tests.support.podless_ground import PodlessGround


@pytest.fixture
def ground() -> PodlessGround:
    return PodlessGround()


class TestPodlessDriver(DriverContract):
    """The contract, unchanged."""


def test_a_grace_period_ends_on_the_shifted_clock(ground: PodlessGround) -> None:
    driver = ground.driver()
    pod = ground.make_ready(driver.create(ground.spec()))
    ground.make_busy(pod)
    driver.delete(pod.name, pod.uid, grace_s=60)
    driver.grow_older(59)
    assert driver.word(pod) is Word.BUSY
    driver.grow_older(1)
    assert driver.read(pod.name) is None


def test_a_pod_without_an_address_is_silent(ground: PodlessGround) -> None:
    driver = ground.driver()
    assert driver.word(driver.create(ground.spec())) is Word.SILENT
