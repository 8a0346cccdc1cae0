"""The image, built once per session, and a real node with the chart installed from it. Locally the
tests are skipped where these cannot be built.

WARMPOOL_TEST_LONG=1 selects the tests on the node that take minutes, too.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import kube_binaries, node_archives, node_parts
from tests.support.node_cluster import PAUSE, NodeCluster
from tests.support.node_image import BuiltImage
from tests.support.node_release import ChartRelease

HERE = Path(__file__).parent
_built: list[BuiltImage] = []
_parts: list[Path] = []
_archives: list[Path] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Build everything now: that takes longer than a test may."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours or config.option.collectonly:
        return
    capture = config.pluginmanager.getplugin("capturemanager")
    try:
        with capture.global_and_fixture_disabled():
            node_parts.require_packages()
            if any({"node", "pause"} & set(getattr(item, "fixturenames", ())) for item in ours):
                kube_binaries.find_or_build(kube_binaries.say_on_stderr, kube_binaries.NAMES)
                _parts.append(node_parts.find_or_build(kube_binaries.say_on_stderr))
            _built.append(BuiltImage(kube_binaries.say_on_stderr).__enter__())
            if _parts:
                others = node_archives.stand_ins(
                    _built[0], _parts[0] / "pause", PAUSE, kube_binaries.say_on_stderr
                )
                _archives.extend([node_archives.project(_built[0]), *others])
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


@pytest.fixture(scope="session")
def pause() -> Path:
    return _parts[0] / "pause"


@pytest.fixture(scope="session")
def node() -> Iterator[NodeCluster]:
    """A cluster of one real node, which leaves nothing behind. This process is in the node's network
    until the session ends, and other tests of a session run before.
    """
    began = time.monotonic()
    with NodeCluster(_parts[0], _archives) as cluster:
        sys.stderr.write(f"\nthe node was ready after {time.monotonic() - began:.0f} s\n")
        for size in ("1Gi", "5Gi"):
            cluster.add_volume(size)
        yield cluster
    assert cluster.space.left() == []


@pytest.fixture(scope="session")
def release(node: NodeCluster) -> ChartRelease:
    """The chart with the values of the trial."""
    made = ChartRelease(node)
    began = time.monotonic()
    made.install()
    sys.stderr.write(f"\nall components were ready {time.monotonic() - began:.0f} s after helm install\n")
    made.warm()
    sys.stderr.write(f"\nthree workers were warm {time.monotonic() - began:.0f} s after helm install\n")
    return made


@pytest.fixture
def pool(release: ChartRelease) -> ChartRelease:
    """The release with everything ready and three warm workers."""
    release.wait_ready()
    release.warm()
    return release
