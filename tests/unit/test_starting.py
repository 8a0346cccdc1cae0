"""What a component does about the garbage collector: off while it starts, on afterwards, and blind to what a start leaves."""

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
def test_who_has_started_collects_garbage_and_leaves_out_what_he_began_with() -> None:
    assert gc.get_freeze_count() == 0
    component._freeze_garbage_collection()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
