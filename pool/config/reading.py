"""Where the configuration comes from: which file, read how, and what its relative paths are relative to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pool.config.environment import CONFIG, variable
from pool.config.parsing import Report, parse
from pool.config.wording import one_line
from pool.errors import ConfigInvalid
from pool.settings import KubernetesSettings, PoolSettings, Settings

FILE_NAME = "warmpool.toml"
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A file's text, or why there is none."""

    path: Path | None
    text: str = ""
    problem: str = ""


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this deployment. Everything that is wrong with them is raised at once, as `ConfigInvalid`."""
    report = examine(path, env)
    if report.problems:
        raise ConfigInvalid(report.problems)
    return report.settings


def check(path: Path | None = None, env: Mapping[str, str] = os.environ) -> list[str]:
    """Everything that is wrong, then what is only doubtful."""
    report = examine(path, env)
    return report.problems + report.warnings


def examine(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Report:
    """The settings with all that was found about them; never raises for what a file or a variable says."""
    source = _read(chosen(path, env))
    report = parse(source.text, str(source.path or FILE_NAME), env)
    if source.problem:
        return replace(report, problems=[source.problem, *report.problems])
    home = source.path.absolute().parent if source.path else Path.cwd()
    found = report.settings
    kubernetes = _rooted_kubernetes(found.kubernetes, home, env)
    return replace(
        report, settings=replace(found, pool=_rooted(found.pool, home, env), kubernetes=kubernetes)
    )


def chosen(path: Path | None, env: Mapping[str, str]) -> Path | None:
    """The file to read: the one asked for, else the environment's, else the one in this directory, else none."""
    if path is not None:
        return path
    if named := env.get(CONFIG):
        return Path(named)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def source_name(path: Path | None, env: Mapping[str, str] = os.environ) -> str:
    """The file that would be read, or that there is none."""
    file = chosen(path, env)
    return str(file) if file else f"defaults (no {FILE_NAME} here)"


def _read(path: Path | None) -> _Source:
    if path is None:
        return _Source(path=None)
    shown = one_line(str(path))
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        return _Source(
            path=path,
            problem=f"{shown}: cannot be read: {reason}; give the path of a file with --config or {CONFIG}",
        )
    try:
        return _Source(path=path, text=raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        return _Source(path=path, problem=f"{shown}:{line}: is not valid TOML: the file is not UTF-8")


def _rooted(pool: PoolSettings, home: Path, env: Mapping[str, str]) -> PoolSettings:
    """Paths made absolute, so that all processes mean the same: the file's from its directory, a variable's from ours."""

    def root(field: str) -> Path:
        return Path.cwd() if variable(field) in env else home

    url = pool.database_url
    if url.startswith(_SQLITE) and not url.startswith(_SQLITE + "/"):
        url = f"{_SQLITE}{root('database_url') / url.removeprefix(_SQLITE)}"
    data_dir = root("data_dir") / os.path.expanduser(pool.data_dir)  # noqa: PTH111 - Path's raises without a home
    return replace(pool, data_dir=str(data_dir), database_url=url)


def _rooted_kubernetes(given: KubernetesSettings, home: Path, env: Mapping[str, str]) -> KubernetesSettings:
    if not given.kubeconfig:
        return given
    root = Path.cwd() if variable("kubeconfig", "kubernetes") in env else home
    return replace(given, kubeconfig=str(root / os.path.expanduser(given.kubeconfig)))  # noqa: PTH111
