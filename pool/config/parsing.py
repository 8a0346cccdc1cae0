"""Parse a file's text and an environment into settings, or into everything that is invalid in them.
Pure: reads no file.

Every finding is one line: where (file and line, or environment), which setting, the value seen and
what is allowed. An invalid value never hides another one: parsing continues with the default in its
place.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pool.config import crosschecks
from pool.config.environment import is_mistake, variable
from pool.config.findings import ENVIRONMENT, Document, Findings, Given
from pool.config.kinds import KINDS, Taker, Wrong, takers
from pool.config.lines import Path, lines_of
from pool.config.rules import RULES
from pool.config.wording import did_you_mean, dotted, one_line, shown
from pool.core.names import (
    DNS_LABEL,
    DNS_LABEL_RULE,
    ENV_ORGS_AUTO_CREATE,
    ENV_PREFIX,
    ORG_NAME,
    ORG_NAME_RULE,
)
from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile, Settings

T = TypeVar("T", PoolSettings, KubernetesSettings, Profile, OrgDefaults)
Table = Mapping[str, Any]

POOL = takers(PoolSettings)
KUBERNETES = takers(KubernetesSettings)
PROFILE = {name: taker for name, taker in takers(Profile).items() if name != "name"}
ORG = takers(OrgDefaults)
HOMES = {"[pool]": POOL, "[kubernetes]": KUBERNETES, "[profiles.NAME]": PROFILE, "[orgs.NAME]": ORG}
SECTIONS = ("pool", "kubernetes", "profiles", "orgs")
SECRETS = frozenset({"master_key", "master_key_previous", "master_key_next"})

_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """The result of parsing. The settings are valid if there are no problems; warnings do not
    prevent their use.
    """

    settings: Settings
    problems: list[str]
    warnings: list[str]


def parse(text: str, file: str, env: Mapping[str, str]) -> ConfigReport:
    """Parse settings from a file's text; environment variables override it."""
    found = Findings()
    doc = _document(text, file, found)
    readable = not found.problems
    pool, spoilt = _section(doc, env, ("pool", PoolSettings, POOL), found)
    kubernetes, _ = _section(doc, env, ("kubernetes", KubernetesSettings, KUBERNETES), found)
    settings = Settings(
        pool=pool,
        kubernetes=kubernetes,
        profiles=_profiles(doc, found),
        orgs=_orgs(doc, found),
        orgs_auto_create=_auto_create(doc, env, found),
    )
    _unknown_sections(doc, found)
    _mistaken_variables(env, found)
    given = _given_fields(doc, env)
    if readable:
        for path, sentence in crosschecks.problems(settings, given=given, spoilt=spoilt):
            found.add(_place(doc, env, path, given), sentence)
    warnings = [
        f"{doc.where(path)}: warning: {sentence}" for path, sentence in crosschecks.warnings(settings)
    ]
    return ConfigReport(settings=settings, problems=found.problems, warnings=warnings)


def _document(text: str, file: str, found: Findings) -> Document:
    try:
        return Document(file=file, data=tomllib.loads(text), lines=lines_of(text))
    except RecursionError:
        found.add(file, "is not usable: it has too many levels of nesting")
    except ValueError as exc:
        # Not only TOMLDecodeError: a number of thousands of digits raises a plain ValueError.
        at = _AT_LINE.search(str(exc))
        place = f"{file}:{at.group(1)}" if at else file
        reason = _AT_LINE.sub(r" at column \2", str(exc))
        found.add(place, f"is not valid TOML: {one_line(reason)}")
    return Document(file=file, data={}, lines={})


def _section(
    doc: Document, env: Mapping[str, str], what: tuple[str, type[T], Mapping[str, Taker]], found: Findings
) -> tuple[T, frozenset[str]]:
    """Return a section, overridden by the environment, and the names of its invalid settings."""
    section, cls, known = what
    givens = _in_table(doc, (section,), doc.data.get(section, {}), found)
    for name, taker in known.items():
        if (text := env.get(variable(name, section))) is not None:
            givens[name] = Given(name=variable(name, section), value=taker.kind.from_text(text))
    fitting = _fitting(cls, known, givens, found)
    return cls(**fitting), frozenset(givens.keys() - fitting.keys())


def _profiles(doc: Document, found: Findings) -> dict[str, Profile]:
    tables = _tables(doc, "profiles", doc.data.get("profiles", {}), found)
    if not tables:
        return {"default": Profile()}
    profiles = {}
    for name, table in tables.items():
        _check_name(doc, ("profiles", name), (DNS_LABEL, DNS_LABEL_RULE), found)
        givens = _in_table(doc, ("profiles", name), table, found)
        profiles[name] = Profile(name=name, **_fitting(Profile, PROFILE, givens, found))
    return profiles


def _orgs(doc: Document, found: Findings) -> dict[str, OrgDefaults]:
    section = doc.data.get("orgs", {})
    named = (
        {k: v for k, v in section.items() if k != "auto_create"} if isinstance(section, Mapping) else section
    )
    orgs = {}
    for name, table in _tables(doc, "orgs", named, found).items():
        _check_name(doc, ("orgs", name), (ORG_NAME, ORG_NAME_RULE), found)
        givens = _in_table(doc, ("orgs", name), table, found)
        orgs[name] = OrgDefaults(**_fitting(OrgDefaults, ORG, givens, found))
    return orgs


def _auto_create(doc: Document, env: Mapping[str, str], found: Findings) -> bool:
    section = doc.data.get("orgs", {})
    default = Settings().orgs_auto_create
    in_file = section.get("auto_create", default) if isinstance(section, Mapping) else default
    given = doc.given("orgs", "auto_create", value=in_file)
    if (text := env.get(ENV_ORGS_AUTO_CREATE)) is not None:
        given = Given(name=ENV_ORGS_AUTO_CREATE, value=KINDS[bool].from_text(text))
    wrongs = list(KINDS[bool].wrongs(given.value, KINDS[bool].takes))
    found.wrong(given, wrongs)
    return default if wrongs else bool(given.value)


def _tables(doc: Document, section: str, tables: object, found: Findings) -> dict[str, Table]:
    """Return the named tables of a section; add a finding for everything that is not a table."""
    if not isinstance(tables, Mapping):
        found.wrong(
            doc.given(section, value=tables), [Wrong(given=tables, takes=f"made of tables, [{section}.NAME]")]
        )
        return {}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            hint = did_you_mean(name, ["auto_create"] if section == "orgs" else [])
            wrong = Wrong(given=table, takes=f"a table, [{section}.NAME]{hint}")
            found.wrong(doc.given(section, name, value=table), [wrong])
    return {name: table for name, table in tables.items() if isinstance(table, Mapping)}


def _in_table(doc: Document, path: Path, table: object, found: Findings) -> dict[str, Given]:
    if not isinstance(table, Mapping):
        found.wrong(doc.given(*path, value=table), [Wrong(given=table, takes=f"a table, [{dotted(path)}]")])
        return {}
    return {key: doc.given(*path, key, value=value) for key, value in table.items()}


def _fitting(
    cls: type[T], known: Mapping[str, Taker], givens: Mapping[str, Given], found: Findings
) -> dict[str, Any]:
    """Return the valid settings as they are stored; add a finding for each of the others."""
    fitting: dict[str, Any] = {}
    for key, given in givens.items():
        if key not in known:
            found.add(given.where(), f"{given.name} is not a setting{_hint(key, given.value, known)}")
            continue
        wrongs = known[key].wrongs(given.value)
        # The names in a table are checked even if one of its entries is invalid.
        if all(wrong.path for wrong in wrongs) and (rule := RULES.get((cls, key))):
            wrongs += rule(given.value)
        found.wrong(given, wrongs, secret=key in SECRETS)
        if not wrongs:
            fitting[key] = known[key].kind.keep(given.value)
    return fitting


def _hint(key: str, value: object, known: Iterable[str]) -> str:
    """Return a suggestion for an unknown key, or ""."""
    if homes := [home for home, names in HOMES.items() if key in names]:
        return f"; {key} belongs in {' or '.join(homes)} of the file"
    if isinstance(value, Mapping):
        return '; put a name that contains dots in quotes, as in [orgs."acme.eu"]'
    return did_you_mean(key, known)


def _check_name(
    doc: Document, path: tuple[str, str], rule: tuple[re.Pattern[str], str], found: Findings
) -> None:
    pattern, takes = rule
    if not pattern.fullmatch(path[-1]):
        found.add(doc.where(path), f"{dotted(path)} is named {shown(path[-1])}; it must be {takes}")


def _unknown_sections(doc: Document, found: Findings) -> None:
    for key in doc.data:
        if key not in SECTIONS:
            known = ", ".join(f"[{section}]" for section in SECTIONS)
            hint = _hint(key, None, SECTIONS) or f"; the sections are {known}"
            found.add(doc.where((key,)), f"{dotted((key,))} is not a section{hint}")


def _mistaken_variables(env: Mapping[str, str], found: Findings) -> None:
    known = [variable(name) for name in POOL] + [variable(name, "kubernetes") for name in KUBERNETES]
    settings = frozenset(known)
    for name in sorted(env):
        if is_mistake(name, settings):
            words = [word.removeprefix(ENV_PREFIX).lower() for word in known]
            hint = _hint(name.removeprefix(ENV_PREFIX).lower(), None, words)
            found.add(ENVIRONMENT, f"{dotted((name,))} is not a setting{hint}")


def _given_fields(doc: Document, env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all settings of the pool that were given, valid or not."""
    table = doc.data.get("pool", {})
    in_file = set(table) if isinstance(table, Mapping) else set()
    return frozenset(in_file | {name for name in POOL if variable(name) in env})


def _place(doc: Document, env: Mapping[str, str], path: Path, given: frozenset[str]) -> str:
    """Return where a setting was given. The environment takes precedence; a default has no line."""
    if path[0] == "pool" and variable(path[-1]) in env:
        return ENVIRONMENT
    return doc.where(path) if path[0] != "pool" or path[-1] in given else doc.file
