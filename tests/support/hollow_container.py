"""Run a container as a plain process: what a pod's manifest asks for, on this machine and without
isolation.
"""

from __future__ import annotations

import base64
import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pool.core import names
from pool.drivers import contract
from pool.drivers.port import LABEL_ROLE, PodRole
from tests.support.kube_api import Object

ROOT = Path(__file__).parents[2]
REFERENCE_WORKER = (sys.executable, "-m", "pool.drivers.local.worker")
FOR_EVER = ("sleep", "infinity")

FindSecret = Callable[[str], Mapping[str, str] | None]


class NotYet(Exception):
    """An object that the manifest refers to does not exist; the reason is the one that a kubelet
    reports.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def prepare(pod: Object, address: str, place: Path, find_secret: FindSecret) -> Launch:
    """Volumes as directories below `place`, environment and command. Raises NotYet while a Secret
    is missing.
    """
    container = pod["spec"]["containers"][0]
    paths = _mount(pod, container, place, find_secret)
    env = {name: os.environ[name] for name in contract.INHERITED if name in os.environ}
    env |= {
        "PYTHONPATH": str(ROOT),
        names.ENV_WORKER: pod["metadata"]["name"],
        names.ENV_UID: pod["metadata"]["uid"],
        names.ENV_PORT: str(port(pod)),
        names.ENV_GRACE_S: str(pod["spec"].get("terminationGracePeriodSeconds", 30)),
    }
    for each in container.get("env", []):
        env[each["name"]] = _translated(_value(each, pod, address, find_secret), paths)
    # A container has its own address; here each has its own loopback address.
    env[names.ENV_HOST] = address
    return Launch(argv=_argv(pod, container), env=env)


def port(pod: Object) -> int:
    """Return the first port that the pod's container names."""
    ports = pod["spec"]["containers"][0].get("ports") or [{"containerPort": 8080}]
    return int(ports[0]["containerPort"])


def passes_probe(pod: Object, address: str) -> bool:
    """Return whether the container is ready now. Without a probe it is ready as soon as it runs."""
    probe = pod["spec"]["containers"][0].get("readinessProbe", {})
    asked = probe.get("httpGet")
    if asked is None:
        return True
    number = asked["port"] if isinstance(asked["port"], int) else port(pod)
    connection = http.client.HTTPConnection(address, number, timeout=probe.get("timeoutSeconds", 1))
    try:
        connection.request("GET", asked.get("path", "/"))
        return 200 <= connection.getresponse().status < 400
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def exit_code(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code as container runtimes report it: 128 plus the signal."""
    code = process.returncode
    return code if code >= 0 else 128 - code


def signal_if_alive(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(what)


def _argv(pod: Object, container: Object) -> tuple[str, ...]:
    if pod["metadata"].get("labels", {}).get(LABEL_ROLE) == PodRole.PLACEHOLDER:
        return FOR_EVER
    words = (*container.get("command", []), *container.get("args", []))
    if not words:
        return REFERENCE_WORKER
    if words[0] == "warmpool-init":
        words = words[1:]
    return (sys.executable, *words[1:]) if words[0] in ("python", "python3") else words


def _mount(pod: Object, container: Object, place: Path, find_secret: FindSecret) -> dict[str, Path]:
    """Map each mount's path in the container to its path on this machine."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    paths: dict[str, Path] = {}
    for mount in container.get("volumeMounts", []):
        volume = volumes[mount["name"]]
        here = place / volume["name"]
        here.mkdir(exist_ok=True)
        if "secret" in volume:
            _write_secret(volume["secret"], here, find_secret)
        paths[mount["mountPath"].rstrip("/")] = here / mount["subPath"] if "subPath" in mount else here
    return paths


def _write_secret(source: Object, here: Path, find_secret: FindSecret) -> None:
    content = find_secret(source["secretName"])
    if content is None:
        if source.get("optional"):
            return
        raise NotYet("ContainerCreating", f'secret "{source["secretName"]}" not found')
    names = {item["key"]: item["path"] for item in source.get("items", [])} or {key: key for key in content}
    for key, name in names.items():
        if key not in content:
            raise NotYet("ContainerCreating", f"references non-existent secret key: {key}")
        (here / name).touch(mode=0o600)
        (here / name).write_bytes(base64.b64decode(content[key]))


def _value(each: Object, pod: Object, address: str, find_secret: FindSecret) -> str:
    source = each.get("valueFrom")
    if source is None:
        return str(each.get("value", ""))
    if "fieldRef" in source:
        fields = {
            "metadata.name": pod["metadata"]["name"],
            "metadata.namespace": pod["metadata"]["namespace"],
            "metadata.uid": pod["metadata"]["uid"],
            "spec.nodeName": pod["spec"].get("nodeName", ""),
            "status.podIP": address,
        }
        return str(fields[source["fieldRef"]["fieldPath"]])
    wanted = source["secretKeyRef"]
    content = find_secret(wanted["name"]) or {}
    if wanted["key"] not in content:
        raise NotYet("CreateContainerConfigError", f'secret "{wanted["name"]}" not found')
    return base64.b64decode(content[wanted["key"]]).decode()


def _translated(value: str, paths: Mapping[str, Path]) -> str:
    for there, here in paths.items():
        if value == there or value.startswith(f"{there}/"):
            return f"{here}{value[len(there) :]}"
    return value
