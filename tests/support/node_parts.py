"""What a node runs of Kubernetes: kubelet, kube-proxy, containerd, CoreDNS and `pause`, built once from
Go modules into the cache.

    python -m tests.support.node_parts   # finds or builds them, and prints their directory

Runc and the network plugins are Debian's; `tests/node/packages.txt` names them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import kube_binaries
from tests.support.kube_binaries import Missing, Say

SOURCES = Path(__file__).parents[1] / "node" / "parts"
PACKAGES = SOURCES.parent / "packages.txt"
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_PROGRAMS = (
    "./kubernetes", "./coredns", "./pause",
    f"{_CONTAINERD}/containerd", f"{_CONTAINERD}/containerd-shim-runc-v2", f"{_CONTAINERD}/ctr",
)  # fmt: skip
_TAGS = "osusergo netgo no_btrfs no_devmapper no_zfs"


def require_packages() -> None:
    """Raise Missing, with what to do, unless this is root on Linux with Debian's packages."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise Missing("the tests of the image and of a node need root on Linux")
    lines = [line.split() for line in PACKAGES.read_text().splitlines() if not line.startswith("#")]
    absent = [package for package, program in lines if not Path(program).exists()]
    if absent:
        raise Missing(f"the tests of the image and of a node need Debian's packages {', '.join(absent)}")


def find_or_build(say: Say) -> Path:
    """Return the directory of all parts; building takes minutes, once."""
    target = _cached()
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise Missing("no parts of a node: install Go 1.26 (they are built once, 10 CPU minutes)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with kube_binaries.alone(target.with_name(f"{target.name}.lock"), say):
        if not target.exists():
            _build(target, say)
    return target


def _cached() -> Path:
    content = b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.is_file())
    return kube_binaries.cache_root() / f"node-{hashlib.sha256(content + _TAGS.encode()).hexdigest()[:12]}"


def _build(target: Path, say: Say) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        draft.chmod(0o755)
        version = kube_binaries.version_stamp(SOURCES / "go.mod")
        say("building kubelet, kube-proxy, containerd and CoreDNS, once: 10 CPU minutes")
        words = ["nice", "-n", "15", "go", "build", "-trimpath", "-buildvcs=false", "-tags", _TAGS]
        words += [f"-ldflags=-s -w {version}", "-o", f"{draft}/", *_PROGRAMS]
        # Without cgo the build needs no C compiler and no library of this machine.
        env = os.environ | {"CGO_ENABLED": "0"}
        done = subprocess.run(words, cwd=SOURCES, env=env, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"the parts of a node could not be built: {done.stderr[-600:]}")
        for name in ("kubelet", "kube-proxy"):
            (draft / name).symlink_to("kubernetes")
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


if __name__ == "__main__":
    print(find_or_build(kube_binaries.say_on_stderr))
