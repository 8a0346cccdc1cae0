"""Render the configuration: a commented example with every setting, and the effective settings. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import Any

from pool.config.environment import variable
from pool.config.kinds import KINDS, Taker
from pool.config.parsing import KUBERNETES, ORG, POOL, PROFILE, SECRETS
from pool.config.wording import dotted
from pool.core.brokerurl import hidden
from pool.core.names import ENV_ORGS_AUTO_CREATE
from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile, Settings

_HEAD = """\
# warmpool.toml: every setting with its default. Written by `warmpool config example`.
# A line that begins with "#" and a name is a setting at its default. Remove the "#" to change it.
# The file is --config, else WARMPOOL_CONFIG, else ./warmpool.toml. Without a file the defaults apply.
# `warmpool config check` explains every invalid line, `warmpool config show` prints the effective settings.

"""
# Values shown in the example for settings that have no default.
_WHERE_NONE = {"hot_idle_ttl_s": 60, "activation_budget_s": 30, "run_as_user": 65_532}
_URLS = frozenset({"database_url", "broker_url"})


def example() -> str:
    """Return a file that lists every setting and changes none."""
    return _HEAD + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "[pool]"
    yield f"# Environment variables override these settings: {variable('max_workers')} and so on."
    yield from _section(PoolSettings, POOL)
    yield from (
        "",
        "",
        "# The cluster, for the driver kubernetes.",
        f"# Environment variables override these settings: {variable('namespace', 'kubernetes')} and so on.",
        "[kubernetes]",
    )
    yield from _section(KubernetesSettings, KUBERNETES)
    yield from (
        "",
        "",
        "# A kind of worker. Add more sections for more profiles.",
        "[profiles.default]",
    )
    yield from _section(Profile, PROFILE)
    yield from ("", "", f"# The tenants. {ENV_ORGS_AUTO_CREATE} overrides auto_create.", "[orgs]")
    auto_create = next(f for f in fields(Settings) if f.name == "orgs_auto_create")
    yield from _setting("auto_create", auto_create, KINDS[bool].takes)
    yield from (
        "",
        "# One org. The file sets its initial values; later changes by `warmpool org` take precedence.",
        "#[orgs.acme]",
    )
    yield from _section(OrgDefaults, ORG)


def _section(cls: type, known: Mapping[str, Taker]) -> Iterator[str]:
    for field in fields(cls):
        if field.name in known:
            yield from _setting(field.name, field, known[field.name].takes)


def _setting(name: str, field: Field[Any], takes: str) -> Iterator[str]:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    yield ""
    yield f"# {field.metadata['doc']}"
    if takes != KINDS[str].takes:
        yield f"# Allowed: {takes}." + (" Not set by default." if default is None else "")
    yield f"#{name} = {toml(_WHERE_NONE[name] if default is None else default)}"


def toml(value: object) -> str:
    """Return a value as TOML. JSON strings, numbers and booleans are valid TOML."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{dotted((key,))} = {toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # TOML has no \u escape for surrogate halves and requires DEL to be escaped; JSON differs in both.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def in_force(settings: Settings) -> dict[str, Any]:
    """Return the settings as plain data in the shape of the file, without secrets and unset values."""
    pool = {name: _unsecret(name, value) for name, value in asdict(settings.pool).items()}
    profiles = {name: _plain(profile, PROFILE) for name, profile in settings.profiles.items()}
    orgs = {name: _plain(org, ORG) for name, org in settings.orgs.items()}
    return {
        "pool": pool,
        "kubernetes": asdict(settings.kubernetes),
        "profiles": profiles,
        "orgs": {"auto_create": settings.orgs_auto_create, **orgs},
    }


def _plain(thing: Profile | OrgDefaults, known: Mapping[str, Taker]) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in known if getattr(thing, name) is not None}


def _unsecret(name: str, value: object) -> object:
    if name in SECRETS:
        return "***" if value else ""
    return hidden(str(value)) if name in _URLS else value


def as_toml(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield plain data as the lines of a file: `[section]` or `[section.NAME]`, and one key per line."""
    sections = path in {(), ("profiles",), ("orgs",)}
    tables = {key: value for key, value in data.items() if sections and isinstance(value, Mapping)}
    if path and tables.keys() != data.keys():
        yield f"[{dotted(path)}]"
    for key, value in data.items():
        if key not in tables:
            yield f"{dotted((key,))} = {toml(value)}"
    for key, table in tables.items():
        yield from as_toml(table, (*path, key))
    if not tables:
        yield ""
