"""The files of a release: built twice with the same bytes, and installed in a fresh environment.
Needs a package index.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.support.client_wheel import ROOT

VERSION = "0.1.0"


def test_release_names_every_place_that_has_another_version(tmp_path: Path) -> None:
    done = _release("9.9.9", tmp_path / "release")
    assert done.returncode == 1
    for place in (
        "pyproject.toml",
        "charts/warmpool/Chart.yaml: appVersion",
        "Dockerfile",
        "docker-compose.yml",
    ):
        assert f"{place}: {VERSION}" in done.stderr
    assert not (tmp_path / "release").exists()


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("first") / "release"
    done = _release(VERSION, folder)
    assert done.returncode == 0, done.stderr
    assert "nothing was tagged" in done.stdout
    return folder


def test_second_run_gives_the_same_bytes(release: Path, tmp_path: Path) -> None:
    again = tmp_path / "release"
    assert _release(VERSION, again).returncode == 0
    assert _bytes_in(again) == _bytes_in(release)
    sums = dict(line.split("  ")[::-1] for line in (release / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        name: hashlib.sha256(content).hexdigest()
        for name, content in _bytes_in(release).items()
        if name != "SHA256SUMS"
    }


def test_released_wheels_install_and_run(release: Path, tmp_path: Path) -> None:
    _ran(sys.executable, "-m", "venv", tmp_path / "venv")
    bin_ = tmp_path / "venv" / "bin"
    wheels = sorted(release.glob("*.whl"))
    assert len(wheels) == 2
    _ran(bin_ / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *wheels)
    assert VERSION in _ran(bin_ / "warmpool", "--version")
    _ran(bin_ / "python", "-c", "from warmpool import AsyncPool, Pool; import tasks.app, beat_schedule")


def test_released_chart_runs_the_image_of_its_version(release: Path) -> None:
    helm = Path(sys.executable).with_name("helm")
    values = ROOT / "charts" / "warmpool" / "ci" / "trial-values.yaml"
    rendered = _ran(helm, "template", "wp", release / f"warmpool-{VERSION}.tgz", "-f", values)
    images = {
        container["image"]
        for each in yaml.safe_load_all(rendered)
        if each and each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    assert any(image.endswith(f"warmpool:{VERSION}") for image in images), images


def test_released_source_has_what_make_and_the_image_need(release: Path) -> None:
    with tarfile.open(release / f"warmpool_server-{VERSION}.tar.gz") as source:
        names = {name.split("/", 1)[1] for name in source.getnames()}
    tracked = set(_ran("git", "ls-files", "--", ":!.gitignore").split())
    assert tracked - names == set()


def _release(version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "deploy" / "release.py", version, "--to", folder],
        capture_output=True,
        text=True,
    )


def _bytes_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def _ran(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
