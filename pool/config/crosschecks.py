"""Check settings against each other: time budgets that do not nest, placeholders that have no value. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace

from pool.config.lines import Path
from pool.config.wording import dotted
from pool.core.profiles import unknown_placeholders
from pool.core.settings import PoolSettings, Settings, nesting_problems

_NAMES = frozenset(f.name for f in fields(PoolSettings))


def problems(
    settings: Settings, *, given: frozenset[str], spoilt: frozenset[str]
) -> Iterator[tuple[Path, str]]:
    """Yield a setting and a sentence for each pair of budgets that do not nest.

    Settings in `spoilt` are invalid by themselves and are not compared.
    """
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
    """Apply the same rules to the activation budget of each profile."""
    for name, profile in settings.profiles.items():
        if profile.activation_budget_s is None:
            continue
        pool = replace(settings.pool, activation_budget_s=profile.activation_budget_s)
        for sentence in nesting_problems(pool):
            if sentence not in own and not spoilt.intersection(_named(sentence)):
                at = ("profiles", name, "activation_budget_s")
                yield at, f"{dotted(at)} is {profile.activation_budget_s}; with it pool.{sentence}"


def warnings(settings: Settings) -> Iterator[tuple[Path, str]]:
    """Yield a warning for each placeholder that would reach a worker unreplaced.

    It is only a warning because orgs can get values at run time.
    """
    known = {key: value for org in settings.orgs.values() for key, value in org.values.items()}
    for name, profile in settings.profiles.items():
        path = ("profiles", name, "activation_payload")
        for placeholder in unknown_placeholders(profile.activation_payload, known):
            why = (
                "no org in this file defines this value"
                if placeholder.startswith("values.")
                else "it is not a known placeholder"
            )
            yield path, f"{dotted(path)} contains {{{placeholder}}}, but {why}"


def _named(sentence: str) -> list[str]:
    """Return the settings that a sentence names, each once, in order."""
    return list(dict.fromkeys(word for word in re.findall(r"[a-z_]+", sentence) if word in _NAMES))
