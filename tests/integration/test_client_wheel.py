"""The wheel of the client: its files, and that the build renamed every import."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from tests.support.client_wheel import CLIENT, ROOT, build_wheel

CLIENT_MODULES = sorted(path.stem for path in (ROOT / "pool" / "client").glob("*.py"))
# A module of the server here means that the client imports more than it needs.
CORE_MODULES = [
    "__init__",
    "backoff",
    "brokerurl",
    "clock",
    "contract",
    "errors",
    "ids",
    "literals",
    "names",
    "signing",
    "states",
    "tokens",
    "tracecontext",
    "worker_state",
]
# What a service may have installed, by the module that imports it; held.py only for the type checker.
OPTIONAL = {
    "warmpool/pytest_plugin.py": "pytest",
    "warmpool/http_calls.py": "requests",
    "warmpool/held.py": "requests",
}
BROKER_MODULES = ["__init__", "aioconnecting", "connecting", "outages"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    with ZipFile(build_wheel(CLIENT, tmp_path_factory.mktemp("wheel"))) as opened:
        yield opened


def test_a_service_gets_one_package_and_nothing_else(wheel: ZipFile) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    info = f"warmpool-{version}.dist-info"
    assert set(wheel.namelist()) == {
        *(f"warmpool/{name}.py" for name in CLIENT_MODULES),
        *(f"warmpool/_core/{name}.py" for name in CORE_MODULES),
        *(f"warmpool/_broker/{name}.py" for name in BROKER_MODULES),
        "warmpool/py.typed",
        *(
            f"{info}/{name}"
            for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
        ),
    }
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_every_import_is_of_the_package_itself_redis_or_the_standard_library(wheel: ZipFile) -> None:
    modules = {name for name in wheel.namelist() if name.endswith(".py")}
    for name in modules:
        for imported in _imports(ast.parse(wheel.read(name))):
            top, *_ = imported.split(".")
            path = imported.replace(".", "/")
            known = {f"{path}.py", f"{path}/__init__.py"} & modules
            allowed = top == "redis" or OPTIONAL.get(name) == top
            assert known or allowed or top in sys.stdlib_module_names, f"{name} imports {imported}"


def test_workers_need_the_standard_library_only(wheel: ZipFile) -> None:
    modules = [name for name in wheel.namelist() if name.startswith("warmpool/worker")]
    assert len(modules) == 10
    for name in modules:
        assert "redis" not in set(_imports(ast.parse(wheel.read(name))))


def test_the_client_needs_redis_only(wheel: ZipFile) -> None:
    (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA"))
    needs = [
        line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if "Requires-Dist" in line
    ]
    assert [Requirement(line).name for line in needs] == ["redis"]


def test_the_server_needs_the_client_of_its_own_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"warmpool=={project['version']}" in project["dependencies"]


def test_no_package_of_the_lock_has_a_module_that_the_server_installs(tmp_path: Path) -> None:
    with ZipFile(build_wheel(ROOT, tmp_path)) as server:
        tops = {name.split("/")[0] for name in server.namelist() if ".dist-info/" not in name}
    assert tops == {"pool", "tasks", "beat_schedule.py"}
    installed = packages_distributions()
    others = {name for top in ("pool", "tasks", "beat_schedule") for name in installed.get(top, [])}
    assert others <= {"warmpool-server", "warmpool"}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            assert node.level == 0
            yield node.module
