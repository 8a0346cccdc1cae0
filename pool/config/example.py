"""The configuration in words: a commented example with every setting, and what is in force. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import Any

from pool.config.environment import ORGS_AUTO_CREATE, variable
from pool.config.kinds import KINDS, Taker
from pool.config.parsing import KUBERNETES, ORG, POOL, PROFILE, SECRETS
from pool.config.rules import redacted
from pool.config.wording import dotted
from pool.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile, Settings

_HEAD = """\
# warmpool.toml: every setting with its default. Written by `warmpool config example`.
# A line that begins with "#" and a name is a setting at its default: take the "#" away to change it.
# The file is looked for as --config, then WARMPOOL_CONFIG, then ./warmpool.toml; without one the defaults hold.
# `warmpool config check` explains every line that is wrong, `warmpool config show` says what is in force.

"""
# What a setting looks like whose default is to have none.
_WHERE_NONE = {"hot_idle_ttl_s": 60, "activation_budget_s": 30, "run_as_user": 65_532}
_URLS = frozenset({"database_url", "broker_url"})


def example() -> str:
    """A file in which everything is said and nothing is changed."""
    return _HEAD + "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "[pool]"
    yield f"# Each of these is also an environment variable, which wins: {variable('max_workers')} and so on."
    yield from _section(PoolSettings, POOL)
    yield from (
        "",
        "",
        f"# The cluster, for the driver kubernetes. {variable('namespace', 'kubernetes')} and so on win.",
        "[kubernetes]",
    )
    yield from _section(KubernetesSettings, KUBERNETES)
    yield from (
        "",
        "",
        "# A kind of worker. There may be others beside it, under other names.",
        "[profiles.default]",
    )
    yield from _section(Profile, PROFILE)
    yield from ("", "", f"# The tenants. {ORGS_AUTO_CREATE} wins over auto_create.", "[orgs]")
    auto_create = next(f for f in fields(Settings) if f.name == "orgs_auto_create")
    yield from _setting("auto_create", auto_create, KINDS[bool].takes)
    yield from ("", "# One org. The file seeds it; what `warmpool org` changes later rules.", "#[orgs.acme]")
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
        yield f"# takes {takes}" + ("; by default none" if default is None else "")
    yield f"#{name} = {toml(_WHERE_NONE[name] if default is None else default)}"


def toml(value: object) -> str:
    """A value in TOML's spelling; JSON's strings, numbers and booleans are TOML's too."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{dotted((key,))} = {toml(item)}" for key, item in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    # TOML has no \u for the halves of a pair and wants DEL escaped; JSON does neither.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def in_force(settings: Settings) -> dict[str, Any]:
    """The settings as plain data in the file's shape, without secrets and without what is not set."""
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
    return redacted(str(value)) if name in _URLS else value


def as_toml(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Plain data as the lines of a file: `[section]`, or `[section.NAME]`, with one key a line."""
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
