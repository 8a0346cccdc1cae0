"""A component's use of the garbage collector: off during the start, on afterwards, and without the
objects of the start.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tasks import __main__ as component


@pytest.fixture
def collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_a_started_process_freezes_its_objects_and_collects_garbage() -> None:
    before = gc.get_freeze_count()  # Python 3.12 starts with some
    component._freeze_garbage_collection()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before + 1000
