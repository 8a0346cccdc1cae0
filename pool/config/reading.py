"""Find and read the configuration file, and resolve its relative paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pool.config.environment import variable
from pool.config.parsing import ConfigReport, parse
from pool.config.wording import one_line
from pool.core.errors import ConfigInvalid
from pool.core.names import ENV_CONFIG
from pool.core.settings import KubernetesSettings, PoolSettings, Settings

FILE_NAME = "warmpool.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The text of a file, or the reason why it could not be read."""

    path: Path | None
    text: str = ""
    problem: str = ""


def load(path: Path | None = None, env: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of this deployment; raise `ConfigInvalid` with all problems at once."""
    report = examine(path, env)
    if report.problems:
        raise ConfigInvalid(report.problems)
    return report.settings


def check(path: Path | None = None, env: Mapping[str, str] = os.environ) -> list[str]:
    """Return all problems, followed by all warnings."""
    report = examine(path, env)
    return report.problems + report.warnings


def examine(path: Path | None = None, env: Mapping[str, str] = os.environ) -> ConfigReport:
    """Return the settings and all findings; never raises because of the contents of a file or variable."""
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
    """Return the file to read: `path`, else WARMPOOL_CONFIG, else the one in this directory, else None."""
    if path is not None:
        return path
    if named := env.get(ENV_CONFIG):
        return Path(named)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def source_name(path: Path | None, env: Mapping[str, str] = os.environ) -> str:
    """Describe the source of the settings: the file, or the defaults."""
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
            problem=f"{shown}: cannot be read: {reason}; set --config or {ENV_CONFIG} to the path of a file",
        )
    try:
        return _Source(path=path, text=raw.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        return _Source(path=path, problem=f"{shown}:{line}: is not valid TOML: the file is not UTF-8")


def _rooted(pool: PoolSettings, home: Path, env: Mapping[str, str]) -> PoolSettings:
    """Make paths absolute: relative to the file's directory or, for a variable, to the current directory."""
    root = Path.cwd() if variable("data_dir") in env else home
    data_dir = root / os.path.expanduser(pool.data_dir)  # noqa: PTH111 - Path's raises without a home
    return replace(pool, data_dir=str(data_dir))


def _rooted_kubernetes(given: KubernetesSettings, home: Path, env: Mapping[str, str]) -> KubernetesSettings:
    if not given.kubeconfig:
        return given
    root = Path.cwd() if variable("kubeconfig", "kubernetes") in env else home
    return replace(given, kubeconfig=str(root / os.path.expanduser(given.kubeconfig)))  # noqa: PTH111
