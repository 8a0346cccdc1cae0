"""The servers of a Kubernetes control plane: found in KUBEBUILDER_ASSETS or in the cache, else built
once from Go modules.

    python -m tests.support.kube_binaries   # finds or builds them, and prints their directory

All servers of a cluster come from one directory, so that their versions match. Of two concurrent
builds the second waits for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "kube" / "servers"
NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok")
SHORTEST = ("etcd", "kube-apiserver")
HOW_TO_GET = (
    "no Kubernetes servers: install Go 1.26 (they are built once, 13 CPU minutes), "
    "or set KUBEBUILDER_ASSETS to a directory with " + ", ".join(NAMES)
)

Say = Callable[[str], None]


class Missing(Exception):
    """The binaries are missing and cannot be built here; explains how to get them."""


def find(names: tuple[str, ...] = SHORTEST) -> Path:
    """Return a directory that has all of these, if there is one."""
    for place in (os.environ.get("KUBEBUILDER_ASSETS"), cached()):
        if place and all(os.access(Path(place) / name, os.X_OK) for name in names):
            return Path(place)
    raise Missing(HOW_TO_GET)


def find_or_build(say: Say, names: tuple[str, ...] = SHORTEST) -> Path:
    """Return a directory that has all of these; takes minutes if they must be built."""
    try:
        return find(names)
    except Missing:
        if shutil.which("go") is None:
            raise
        return build(say)


def cache_root() -> Path:
    """Return the directory of everything that is built once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "warmpool"


def cached() -> Path:
    """Return the cache directory for the current sources."""
    content = b"".join((SOURCES / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))
    return cache_root() / f"kube-{_version()}-{hashlib.sha256(content).hexdigest()[:12]}"


def build(say: Say) -> Path:
    """Build them into the cache, completely or not at all."""
    target = cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_name(f"{target.name}.lock"), say):
        if target.exists():
            return target
        draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            draft.chmod(0o755)
            _compile(draft / "servers", say)
            for name in NAMES:
                (draft / name).symlink_to("servers")
            draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return target


def _compile(program: Path, say: Say) -> None:
    flags = f"-s -w {version_stamp(SOURCES / 'go.mod')}"
    # Without cgo the build needs no C compiler and no library of this machine.
    env = os.environ | {"CGO_ENABLED": "0"}
    say(f"building etcd, Kubernetes {_version()} and kwok, once: 13 CPU minutes")
    listed = subprocess.run(
        ["go", "list", "-deps", "."], cwd=SOURCES, env=env, capture_output=True, text=True
    )
    if listed.returncode:
        raise Missing(
            f"the Go modules of the Kubernetes servers cannot be downloaded: {listed.stderr[-600:]}"
        )
    command = [
        "go",
        "build",
        "-v",
        "-trimpath",
        "-buildvcs=false",
        f"-ldflags={flags}",
        "-o",
        str(program),
        ".",
    ]
    nice = ["nice", "-n", "15"] if shutil.which("nice") else []
    began = time.monotonic()
    with subprocess.Popen(
        [*nice, *command], cwd=SOURCES, env=env, stderr=subprocess.PIPE, text=True
    ) as building:
        assert building.stderr is not None
        last = _follow(building.stderr, len(listed.stdout.split()), say)
    if building.returncode:
        raise Missing(f"the Kubernetes servers could not be built: {' '.join(last)}")
    say(f"built in {time.monotonic() - began:.0f} s")


def _follow(lines: Iterator[str], packages: int, say: Say) -> list[str]:
    """Print progress and return the last lines, for the case of a failure. Packages in Go's own
    cache print nothing.
    """
    last: list[str] = []
    for done, line in enumerate(lines, start=1):
        last = [*last[-5:], line.strip()]
        if done % 25 == 0:
            say(f"building Kubernetes … {min(done, packages)}/{packages} packages ({line.strip()})")
    return last


@contextmanager
def alone(lock: Path, say: Say) -> Iterator[None]:
    """Hold a lock file; of two concurrent builds the second waits."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def version_stamp(go_mod: Path) -> str:
    """Return the linker flags that tell programs of Kubernetes their version."""
    version = _version(go_mod)
    major, minor, _ = version.split(".")
    stamp = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    return " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamp.items())


def _version(go_mod: Path = SOURCES / "go.mod") -> str:
    found = re.search(r"k8s\.io/kubernetes v(\S+)", go_mod.read_text())
    assert found is not None
    return found.group(1)


def say_on_stderr(text: str) -> None:
    """Print one changing line on a terminal, else a line each with a limit on their rate."""
    progress = "…" in text
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\033[K{text[:width]}", end="" if progress else "\n", file=sys.stderr, flush=True)
    elif not progress or re.search(r" \d*[05]00/", text):
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    if os.environ.get("KUBECONFIG"):
        return 0
    try:
        print(find_or_build(say_on_stderr, NAMES))
    except Missing as exc:
        # Locally the tests themselves skip, with the same line.
        if not os.environ.get("CI"):
            return 0
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
