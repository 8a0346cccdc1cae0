"""Settings to compare: the configuration with some settings changed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pool.core.errors import PoolError
from pool.core.settings import PoolSettings, Profile, Settings

_POOL = {f.name: f for f in fields(PoolSettings) if f.type in {"int", "int | None"}}
_PROFILE = {f.name: f for f in fields(Profile) if f.type in {"int", "int | None"}}


class TryInvalid(PoolError):
    """A change with an unknown setting or an invalid number."""


def changed(settings: Settings, text: str) -> Settings:
    """Return settings with the changes in `text`, such as `warm_target=5,hot_idle_ttl_s=120`.

    A profile setting applies to all profiles, or with `gpu.warm_target=2` to one. Other names are
    settings of the pool, such as `max_workers=40`.
    """
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value.isdigit():
            raise TryInvalid(
                f"invalid change {part.strip()!r}: write NAME=NUMBER with a whole number, 0 or "
                "more, such as warm_target=5"
            )
        settings = _set(settings, name, int(value))
    return settings


def _set(settings: Settings, name: str, value: int) -> Settings:
    profile, dot, setting = name.rpartition(".")
    if dot and profile not in settings.profiles:
        raise TryInvalid(
            f"unknown profile {profile!r}; configured are: {', '.join(sorted(settings.profiles))}"
        )
    if setting in _PROFILE:
        _must_fit(_PROFILE[setting], value)
        change: dict[str, Any] = {setting: value}
        kinds = {
            n: replace(p, **change) if n == profile or not dot else p for n, p in settings.profiles.items()
        }
        return replace(settings, profiles=kinds)
    if setting in _POOL and not dot:
        _must_fit(_POOL[setting], value)
        changes: dict[str, Any] = {setting: value}
        return replace(settings, pool=replace(settings.pool, **changes))
    raise TryInvalid(
        f"a simulation cannot change {name!r}; use, for example, warm_target, hot_idle_ttl_s, "
        "max_workers or surplus_ttl_s"
    )


def _must_fit(setting: Any, value: int) -> None:
    least, most = setting.metadata["least"], setting.metadata["most"]
    if (least is not None and value < least) or (most is not None and value > most):
        raise TryInvalid(
            f"{setting.name}={value} is out of range: the minimum is {least}"
            + ("" if most is None else f" and the maximum is {most}")
        )
