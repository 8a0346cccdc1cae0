"""Build every file of a release into build/release/VERSION, from the commit that is checked out.

    python deploy/release.py 0.1.0         # build and check; nothing outside build/ changes
    python deploy/release.py 0.1.0 --tag   # the same from a clean tree, then tag the commit

Wheels and sdists of client and server, the chart, the SBOM, the release notes and SHA256SUMS. Times in
the files are the commit's, so a second run gives the same bytes. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Every place that repeats the version of pyproject.toml.
PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "pyproject.toml: the client": r'^    "warmpool==([^"]+)"',
    "charts/warmpool/Chart.yaml: version": r"^version: (.+)$",
    "charts/warmpool/Chart.yaml: appVersion": r"^appVersion: (.+)$",
    "Dockerfile": r"^ARG VERSION=(.+)$",
    "docker-compose.yml": r"\$\{WARMPOOL_IMAGE:-warmpool:([^}]+)\}",
}


class NotReleasable(Exception):
    """The tree cannot be released as this version; names what to change."""


def versions() -> dict[str, str]:
    """Return the version that each place names, or "none"."""
    found = {}
    for place, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / place.split(":")[0]).read_text(), re.MULTILINE)
        found[place] = match[1] if match else "none"
    return found


def check(version: str) -> None:
    """Raise `NotReleasable` unless every place names this version."""
    wrong = {place: seen for place, seen in versions().items() if seen != version}
    if wrong:
        listed = "".join(f"\n  {place}: {seen}" for place, seen in wrong.items())
        raise NotReleasable(f"VERSION is {version}, but these places name another one:{listed}")


def notes(changelog: str, version: str) -> str | None:
    """Return the section of this version in the changelog, without its heading."""
    section = re.search(
        rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    return section[1].strip() + "\n" if section else None


def build(version: str, target: Path) -> list[Path]:
    """Build all files of the release. `target` has all of them, or it does not exist."""
    if target.exists() and not (target / "SHA256SUMS").is_file():
        raise NotReleasable(f"{target} exists and is not a release; name another folder with --to")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as folder:
        draft = Path(folder) / "files"
        draft.mkdir()
        epoch = _committed_at()
        for name, source in (("client", ROOT / "clientdist"), ("server", ROOT)):
            print(f"release: wheel and sdist of the {name}", flush=True)
            _run([sys.executable, "-m", "hatchling", "build", "-d", draft], cwd=source, epoch=epoch)
        print("release: chart", flush=True)
        _run([_helm(), "package", ROOT / "charts" / "warmpool", "-d", folder], epoch=epoch)
        chart = f"warmpool-{version}.tgz"
        (draft / chart).write_bytes(same_times((Path(folder) / chart).read_bytes(), epoch))
        print("release: SBOM, notes, checksums", flush=True)
        sbom = _run([sys.executable, ROOT / "deploy" / "sbom.py"], epoch=epoch)
        (draft / f"warmpool-{version}.cdx.json").write_text(sbom)
        changelog = (ROOT / "CHANGELOG.md").read_text()
        found = notes(changelog, version) or notes(changelog, "Unreleased") or ""
        (draft / f"warmpool-{version}.md").write_text(found)
        files = sorted(draft.iterdir())
        sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
        (draft / "SHA256SUMS").write_text(sums)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    return sorted(target.iterdir())


def same_times(archive: bytes, epoch: int) -> bytes:
    """Return this tar.gz with sorted members, one time and no owner. Helm writes the time of its run."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as given,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=epoch, filename="") as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as written,
    ):
        for member in sorted(given.getmembers(), key=lambda each: each.name):
            content = given.extractfile(member)
            plain = tarfile.TarInfo(member.name)
            plain.size, plain.mtime, plain.mode = member.size, epoch, 0o644
            written.addfile(plain, content)
    return packed.getvalue()


def check_tag(version: str) -> None:
    """Raise `NotReleasable` unless the tree is clean and the changelog has a section of this version."""
    if _run(["git", "status", "--porcelain"]).strip():
        raise NotReleasable("the tree has changes that are not committed; commit or remove them")
    if notes((ROOT / "CHANGELOG.md").read_text(), version) is None:
        raise NotReleasable(f"CHANGELOG.md has no section [{version}]; rename [Unreleased] and add its date")


def tag(version: str) -> None:
    """Tag the commit. It is checked again, because the tree may have changed since the build began."""
    check_tag(version)
    _run(["git", "tag", "-a", f"v{version}", "-m", f"warmpool {version}"])


def _committed_at() -> int:
    """Return the time of the commit. An unpacked sdist has no history; its builder can set the time."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _run(["git", "log", "-1", "--format=%ct"]))


def _helm() -> str:
    beside = Path(sys.executable).with_name("helm")
    found = str(beside) if beside.exists() else shutil.which("helm")
    if found is None:
        raise NotReleasable("no helm: run `make venv`, which installs it, or put it on PATH")
    return found


def _run(command: list[str | Path], *, cwd: Path = ROOT, epoch: int = 0) -> str:
    env = os.environ | ({"SOURCE_DATE_EPOCH": str(epoch)} if epoch else {})
    try:
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    except FileNotFoundError as exc:
        raise NotReleasable(f"no {command[0]} on PATH; install it") from exc
    if done.returncode:
        raise NotReleasable(f"{' '.join(map(str, command))} failed: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", help="the version to release, as pyproject.toml has it")
    parser.add_argument(
        "--tag", action="store_true", help="tag the commit as vVERSION after a successful build"
    )
    parser.add_argument("--to", type=Path, help="folder for the files (default: build/release/VERSION)")
    given = parser.parse_args()
    try:
        check(given.version)
        if given.tag:
            check_tag(given.version)
        files = build(given.version, given.to or ROOT / "build" / "release" / given.version)
        if given.tag:
            tag(given.version)
    except NotReleasable as exc:
        print(f"release: {exc}", file=sys.stderr)
        return 1
    for file in files:
        print(f"release: {file} ({file.stat().st_size:,} bytes)")
    if not given.tag:
        print(f"release: dry run; nothing was tagged. TAG=1 tags this commit as v{given.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
