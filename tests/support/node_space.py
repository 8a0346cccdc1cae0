"""Namespaces and cgroups for a node: one kill ends everything in them, and this machine's network,
mounts and kernel settings stay as they are.

    with NodeSpace(parts) as space:
        space.start(["containerd"], log=...)
        with space.network():
            ...                     # this thread, and what it starts, is in the node's network
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

from tests.support.kube_processes import ServerProcesses
from tests.support.waiting import eventually

ADDRESS = "10.90.0.1"
CGROUPS = Path("/sys/fs/cgroup")
_NEW_NETWORK = 0x40000000
# The kubelet would set these for the whole machine, so it sees files that already have its values.
_SYSCTLS = {"vm/overcommit_memory": 1, "vm/panic_on_oom": 0, "kernel/panic": 10, "kernel/panic_on_oops": 1}
# A bridge and a pair of interfaces, because an address needs a carrier. $1 is the folder, $2 pause.
_SETUP = """set -eu
root=$1
for folder in run var/lib/kubelet var/lib/cni var/log; do
    mkdir -p "$root/$folder" "/$folder"
    mount --bind "$root/$folder" "/$folder"
done
for file in "$root"/sysctl/*; do
    mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"
done
mount --make-rshared /
ip link set lo up
ip link add node0 type bridge
ip link add node1 type veth peer name node2
ip link set node1 master node0 up
ip link set node2 up
ip address add {address}/24 dev node0
ip link set node0 up
ip route add default via {gateway} dev node0
echo 1 >/proc/sys/net/ipv4/ip_forward
touch "$root/is-set-up"
exec "$2"
"""


class NodeSpace:
    """The namespaces, the cgroups and a folder for everything that a node writes."""

    def __init__(self, pause: Path) -> None:
        # Short, because it contains sockets.
        self.root = Path(tempfile.mkdtemp(prefix="wpn-"))
        self.root.chmod(0o755)
        self.cgroup = f"warmpool-node-{secrets.token_hex(4)}"
        self._pause = pause
        self._children = ServerProcesses()
        self._holder: subprocess.Popen[bytes] | None = None
        self.first = 0

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_up(self) -> None:
        (self.root / "sysctl").mkdir()
        for name, value in _SYSCTLS.items():
            (self.root / "sysctl" / name.replace("/", ".")).write_text(f"{value}\n")
        self._make_cgroups()
        gateway = ADDRESS.rpartition(".")[0] + ".254"
        script = _SETUP.format(address=ADDRESS, gateway=gateway)
        words = ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--propagation", "private"]
        words += ["--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "node"]
        log = self.root / "space.log"
        self._holder = self._children.start([*words, str(self.root), str(self._pause)], log=log)
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")

        def is_set_up() -> bool:
            assert self._holder is not None
            assert self._holder.poll() is None, log.read_text()
            return (self.root / "is-set-up").exists()

        eventually(is_set_up, within_s=30)
        self.first = int(children.read_text().split()[0])

    def start(
        self, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the node's namespaces; it ends with them."""
        return self._children.start([*self._enter(), *argv], log=log, env=env)

    def run(self, *argv: str) -> str:
        """Run a command in the node's namespaces and return its output."""
        done = subprocess.run([*self._enter(), *argv], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)[:200]}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout

    def _enter(self) -> list[str]:
        kinds = ["--net", "--mount", "--pid", "--uts", "--ipc"]
        return ["nsenter", "--target", str(self.first), *kinds, "--"]

    @contextmanager
    def network(self) -> Iterator[None]:
        """Move this thread, and what it starts meanwhile, into the node's network."""
        with (
            Path("/proc/thread-self/ns/net").open("rb") as outside,
            Path(f"/proc/{self.first}/ns/net").open("rb") as inside,
        ):
            _enter_network(inside.fileno())
            try:
                yield
            finally:
                _enter_network(outside.fileno())

    def close(self) -> None:
        """Kill the first process, and with it all others, and remove what they leave."""
        if self.first:
            os.kill(self.first, signal.SIGKILL)
        self._children.close()
        for folder in self.cgroups():
            eventually(partial(_removed, folder), within_s=30, every_s=0.1)
        shutil.rmtree(self.root, ignore_errors=True)

    def cgroups(self) -> list[Path]:
        """Return the node's folders in the hierarchies of this machine."""
        return [path for path in sorted(CGROUPS.glob(f"*/{self.cgroup}")) if path.is_dir()]

    def left(self) -> list[str]:
        """Return what is left of the node on this machine."""
        mounts = [
            line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.root) in line
        ]
        folders = [str(path) for path in (*self.cgroups(), self.root) if path.exists()]
        links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True).stdout.splitlines()
        return [*mounts, *folders, *(line for line in links if ": node" in line or ": veth" in line)]

    def _make_cgroups(self) -> None:
        for hierarchy in sorted(CGROUPS.iterdir()):
            if hierarchy.name == "unified" or not (hierarchy / "tasks").exists():
                continue
            made = hierarchy / self.cgroup
            made.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (made / name).exists():
                    (made / name).write_text((hierarchy / name).read_text())


def _removed(folder: Path) -> bool:
    """Remove a cgroup with those below it; False while a process still ends in one."""
    try:
        for place, _, _ in os.walk(folder, topdown=False):
            Path(place).rmdir()
    except FileNotFoundError:
        return not folder.exists()
    except OSError:
        return False
    return True


def _enter_network(descriptor: int) -> None:
    # From Python 3.12 on, os.setns does this.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
