"""What only shows when settings are seen together: budgets that do not nest, placeholders that nobody fills. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace

from pool.config.lines import Path
from pool.config.wording import dotted
from pool.profiles import unknown_placeholders
from pool.settings import PoolSettings, Settings, nesting_problems

_NAMES = frozenset(f.name for f in fields(PoolSettings))


def problems(
    settings: Settings, *, given: frozenset[str], spoilt: frozenset[str]
) -> Iterator[tuple[Path, str]]:
    """Budgets that do not nest: the setting to look at, and a sentence. A setting that is wrong by itself is not judged."""
    own = nesting_problems(settings.pool)
    for sentence in own:
        named = _named(sentence)
        if not spoilt.intersection(named):
            at = next((n for n in named if n in given), named[0])
            values = ", ".join(f"{n} is {getattr(settings.pool, n)}" for n in named)
            start = "" if at == named[0] else f"{at}: "
            yield ("pool", at), f"pool.{start}{sentence}; {values}"
    yield from _profile_problems(settings, own, spoilt)


def _profile_problems(
    settings: Settings, own: list[str], spoilt: frozenset[str]
) -> Iterator[tuple[Path, str]]:
    """A profile's own activation budget has to nest as well as the pool's."""
    for name, profile in settings.profiles.items():
        if profile.activation_budget_s is None:
            continue
        pool = replace(settings.pool, activation_budget_s=profile.activation_budget_s)
        for sentence in nesting_problems(pool):
            if sentence not in own and not spoilt.intersection(_named(sentence)):
                at = ("profiles", name, "activation_budget_s")
                yield at, f"{dotted(at)} is {profile.activation_budget_s}; with it pool.{sentence}"


def warnings(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Placeholders that would reach a worker unfilled. Orgs can get values at run time, so this is no problem yet."""
    known = {key: value for org in settings.orgs.values() for key, value in org.values.items()}
    for name, profile in settings.profiles.items():
        path = ("profiles", name, "activation_payload")
        for placeholder in unknown_placeholders(profile.activation_payload, known):
            why = (
                "no org in this file has that value"
                if placeholder.startswith("values.")
                else "nothing fills it"
            )
            yield path, f"{dotted(path)} has {{{placeholder}}}, and {why}"


def _named(sentence: str) -> list[str]:
    """The settings that a sentence names, each once, in order."""
    return list(dict.fromkeys(word for word in re.findall(r"[a-z_]+", sentence) if word in _NAMES))
