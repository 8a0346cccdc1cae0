"""The project's image, built from its Dockerfile by buildah without a registry, and containers of it.

The base is made by debootstrap under the official name: Debian's Python of the same version, moved
to where the official image has it. It is cached. Containers have mounts and processes of their own,
a read-only root and the image's user; they end with the process that started them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support import kube_binaries
from tests.support.kube_binaries import Say

ROOT = Path(__file__).parents[2]
IMAGE = "docker.io/library/warmpool:test"
SUITE, PYTHON = "trixie", "3.13"
MIRROR = "http://deb.debian.org/debian"
USER = "65532"
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

# Only the interpreter moves; its libraries stay where Debian has them.
_AS_OFFICIAL = f"""set -eu
rm -rf /usr/local/lib/python{PYTHON}
mv /usr/bin/python{PYTHON} /usr/local/bin/
mv /usr/lib/python{PYTHON} /usr/local/lib/
ln -s python{PYTHON} /usr/local/bin/python3
ln -s python{PYTHON} /usr/local/bin/python
rm -f /usr/local/lib/python{PYTHON}/EXTERNALLY-MANAGED
python -m venv /tmp/with-pip
mkdir -p /usr/local/lib/python3/dist-packages
mv /tmp/with-pip/lib/python{PYTHON}/site-packages/pip* /usr/local/lib/python3/dist-packages/
apt-get clean
rm -rf /tmp/with-pip /var/lib/apt/lists/* /var/log/* /usr/share/doc /usr/share/man /usr/share/locale
find / -xdev -name __pycache__ -type d -prune -exec rm -r {{}} +
"""
_BASE = """FROM scratch
ADD base.tar /
ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
"""
# $1 is the root file system, $2 the folder of the configuration; the rest is the command.
_CONTAINER = f"""set -eu
root=$1 config=$2; shift 2
mount --bind "$root" "$root"
mkdir -p "$root/etc/warmpool"
mount --bind "$config" "$root/etc/warmpool"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o mode=755,uid={USER},gid={USER} tmpfs "$root/run/warmpool"
mount --rbind /dev "$root/dev"
cd "$root"
exec setpriv --pdeathsig KILL -- chroot --userspec={USER}:{USER} --groups={USER} "$root" "$@"
"""


def base_key() -> str:
    """Return the identity of the base."""
    return hashlib.sha256((SUITE + _AS_OFFICIAL).encode()).hexdigest()[:12]


def base(say: Say) -> Path:
    """Return the base's root file system as a tar file; making it takes minutes, once."""
    folder = kube_binaries.cache_root()
    target = folder / f"base-{SUITE}-{base_key()}.tar"
    if target.exists():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    say(f"making a Debian {SUITE} with Python {PYTHON}, once: one to three minutes")
    with tempfile.TemporaryDirectory(prefix="base-", dir=folder) as place:
        root = Path(place) / "root"
        packages = f"ca-certificates,netbase,tzdata,python{PYTHON},python{PYTHON}-venv,python3"
        _run("debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(root), MIRROR)
        _run("chroot", str(root), "sh", "-c", _AS_OFFICIAL)
        draft = Path(place) / "base.tar"
        _run("tar", "-C", str(root), "-cf", str(draft), ".")
        draft.rename(target)
    return target


class BuiltImage:
    """The image, in a store of its own that is deleted at the end."""

    def __init__(self, say: Say) -> None:
        self._say = say
        # Buildah's own mounts are in namespaces that end with it, except the one of `mount`.
        self.place = Path(tempfile.mkdtemp(prefix="wp-image-"))
        self.root = Path()
        self.base_name = ""
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        context = self.place / "base"
        context.mkdir()
        shutil.copyfile(base(self._say), context / "base.tar")
        (context / "Dockerfile").write_text(_BASE)
        official = re.search(r"(?m)^ARG BASE=(\S+)", (ROOT / "Dockerfile").read_text())
        assert official is not None
        self.base_name = f"docker.io/library/{official[1]}"
        self.build(self.base_name, context)
        shutil.rmtree(context)
        self._say("building the image: two to five minutes")
        self.build(IMAGE, ROOT, *_pip_access(), "--build-arg", "REVISION=test")
        name = self.buildah("from", "--pull-never", IMAGE).strip()
        self.root = Path(self.buildah("mount", name).strip())

    def build(self, name: str, context: Path, *options: str) -> None:
        """Build an image into the store."""
        where = ("--isolation", "chroot", "--network", "host", "--pull-never")
        self.buildah("bud", *where, *options, "-t", name, str(context))

    def start(
        self, command: Sequence[str], env: Mapping[str, str], config: Path, log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a container of the image, without the host's variables."""
        words = ["unshare", "--mount", "--pid", "--ipc", "--propagation", "private", "--fork", "--kill-child"]
        words += ["sh", "-c", _CONTAINER, "container", str(self.root), str(config), *command]
        inside = {"PATH": "/opt/warmpool/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **env}
        inside |= {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
        with log.open("ab") as output:
            made = subprocess.Popen(words, env=inside, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._running.append(made)
        return made

    def first_process(self, container: subprocess.Popen[bytes]) -> int:
        """Return the machine's id of a container's process 1, or 0 if it does not run."""
        found = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
        return int(found[0]) if found else 0

    def inside(self, container: subprocess.Popen[bytes], *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in a running container, as an exec probe does."""
        words = ["nsenter", "--target", str(self.first_process(container)), "--mount", "--pid", "--root"]
        env = {"PATH": "/opt/warmpool/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(
            [*words, "--wd=/", f"--setuid={USER}", f"--setgid={USER}", "--", *command],
            env={**env, "PATH": env["PATH"] + ":" + os.environ["PATH"]}, capture_output=True, text=True,
        )  # fmt: skip

    def close(self) -> None:
        """End all containers and delete the store with its mounts."""
        for each in self._running:
            each.kill()
            each.wait()
        if (self.place / "store").exists():
            for words in (("umount", "--all"), ("rm", "--all"), ("rmi", "--all", "--force")):
                self.buildah(*words, check=False)
        left = mounts_below(self.place)
        for mount in reversed(left):
            subprocess.run(["umount", "--recursive", mount], check=False)
        shutil.rmtree(self.place, ignore_errors=True)
        if left:
            raise RuntimeError(f"buildah left mounts, which were removed: {left}")

    def buildah(self, *words: str, check: bool = True) -> str:
        """Run buildah on the store, and return what it printed."""
        store = ["--root", str(self.place / "store"), "--runroot", str(self.place / "run")]
        return _run("buildah", *store, "--storage-driver", "overlay", *words, check=check)


def mounts_below(folder: Path) -> list[str]:
    """Return the mount points of this machine below a folder."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [place for line in lines if (place := line.split()[1]).startswith(f"{folder}/")]


def _pip_access() -> list[str]:
    """Return options that give pip in the build what pip has here: authorities, configuration and a
    folder of wheels.
    """
    found = {AUTHORITIES, Path("/etc/pip.conf"), *map(Path, os.environ.get("PIP_FIND_LINKS", "").split())}
    return [word for path in sorted(found) if path.exists() for word in ("-v", f"{path}:{path}:ro")]


def _run(*words: str, check: bool = True) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{words[0]} {words[-1]}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout
