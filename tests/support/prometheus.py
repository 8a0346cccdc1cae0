"""Debian's Prometheus for tests: promtool, and a server that scrapes given targets. If it is
missing, tests skip locally and fail in CI.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from pool.ops.up.ports import free_port
from tests.support.waiting import eventually


def command(name: str) -> str:
    """Return the path of `prometheus` or `promtool`."""
    found = shutil.which(name)
    if found is None:
        message = f"no {name} on the path: install Debian's prometheus"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([command("promtool"), *words], capture_output=True, text=True, timeout=60)


class Prometheus:
    """A server that scrapes every second and stores its data in one folder."""

    def __init__(
        self, folder: Path, targets: Mapping[str, int], *, rules: Path | None = None, every: str = "1s"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._port = free_port()
        config: dict[str, Any] = {
            "global": {"scrape_interval": every, "evaluation_interval": every, "scrape_timeout": every},
            "scrape_configs": [
                {
                    "job_name": "warmpool",
                    "static_configs": [
                        {"targets": [f"127.0.0.1:{port}"], "labels": {"component": name}}
                        for name, port in targets.items()
                    ],
                }
            ],
        }
        if rules is not None:
            config["rule_files"] = [str(rules)]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    command("prometheus"),
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            eventually(self._ready, within_s=60, every_s=0.1)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=30)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Run an instant query; raise if Prometheus refuses it."""
        answer = self._get("/api/v1/query", query=expr)
        assert answer["status"] == "success", answer
        return list(answer["data"]["result"])

    def firing(self) -> set[str]:
        """Return the names of firing alerts."""
        found = self._get("/api/v1/alerts")["data"]["alerts"]
        return {a["labels"]["alertname"] for a in found if a["state"] == "firing"}

    def scraped(self) -> dict[str, str]:
        """Return the health of each target: up, down or unknown."""
        active = self._get("/api/v1/targets")["data"]["activeTargets"]
        return {t["labels"]["component"]: t["health"] for t in active}

    def _ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _get(self, path: str, **query: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self._port}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as exc:
            return dict(json.load(exc))
