"""The command and the environment of a pod's process."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pool
from pool.core import names
from pool.drivers import contract
from pool.drivers.local.podfile import PodDirectory, Record
from pool.drivers.port import PodRole, PodSpec

_HOST = "127.0.0.1"
# Python starts faster without site-packages, which the reference worker does not need.
_REFERENCE_WORKER = (sys.executable, "-S", "-P", "-m", "pool.drivers.local.worker")
_PLACEHOLDER = ("sleep", "infinity")


def command(spec: PodSpec) -> tuple[str, ...]:
    """Return the command of a pod."""
    if spec.role is PodRole.PLACEHOLDER:
        return _PLACEHOLDER
    return spec.command or _REFERENCE_WORKER


def environment(spec: PodSpec, record: Record, pod_dir: PodDirectory) -> dict[str, str]:
    """Return the inherited variables, overridden by those of the profile, then by those of `contract`."""
    env = {k: v for k, v in os.environ.items() if k in contract.INHERITED} | dict(spec.env)
    env |= {
        names.ENV_WORKER: record.name,
        names.ENV_UID: record.uid,
        names.ENV_PROFILE: spec.profile,
        names.ENV_HOST: _HOST,
        names.ENV_PORT: "0",
        contract.PORT_HINT: str(record.port),
        names.ENV_STATUS_FILE: str(pod_dir.paths(record).status),
        names.ENV_GRACE_S: str(spec.grace_s),
    }
    if spec.secret:
        env[names.ENV_KEY_FILE] = str(pod_dir.secret(record.name))
    if command(spec) is _REFERENCE_WORKER:
        env["PYTHONPATH"] = str(Path(pool.__file__).parents[1])
    return env


def is_probed(spec: PodSpec) -> bool:
    """Return whether the driver probes the pod. The reference worker writes its status itself."""
    return spec.role is PodRole.WORKER and bool(spec.command)


def free_port() -> int:
    """Return a port that is free now. The program gets it in PORT."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port
