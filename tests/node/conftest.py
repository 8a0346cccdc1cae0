"""The image, built once per session. Locally the tests are skipped where it cannot be built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import kube_binaries, node_image
from tests.support.node_image import BuiltImage

HERE = Path(__file__).parent
_built: list[BuiltImage] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Build the image now: that takes longer than a test may."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours or config.option.collectonly:
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        node_image.require()
        with capture.global_and_fixture_disabled():
            _built.append(BuiltImage(kube_binaries.say_on_stderr).__enter__())
    except kube_binaries.Missing as exc:
        if os.environ.get("CI"):
            raise pytest.UsageError(str(exc)) from exc
        for item in ours:
            item.add_marker(pytest.mark.skip(reason=str(exc)))


def pytest_sessionfinish() -> None:
    """Delete the image before the folder of the test run, which contains its mounts."""
    for image in _built:
        image.close()


@pytest.fixture(scope="session")
def image() -> BuiltImage:
    return _built[0]
