"""Derive the allowed values of a setting from its type and bounds. Only this module knows the types. Pure."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

# The largest value of an integer column in Postgres.
MOST_INT = 2**31 - 1
MOST_DEEP = 50
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_BOOLS = {
    "true": True,
    "1": True,
    "yes": True,
    "on": True,
    "false": False,
    "0": False,
    "no": False,
    "off": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """An invalid value, or an invalid part of one at `path`. `takes` completes the phrase "it must be …"."""

    path: tuple[str, ...] = ()
    verb: str = "is"
    given: object
    takes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueKind:
    """One type of setting: how to check a value, store it, and read it from an environment variable."""

    takes: str
    wrongs: Callable[[Any, str], Iterator[Wrong]]
    keep: Callable[[Any], object] = lambda value: value
    from_text: Callable[[str], object] = lambda text: text


@dataclass(frozen=True, slots=True, kw_only=True)
class Taker:
    """One setting: its kind and its bounds."""

    kind: ValueKind
    least: float | None
    most: float | None

    @property
    def takes(self) -> str:
        """Describe the allowed values."""
        if self.least is None and self.most is None:
            return self.kind.takes
        if self.most is None:
            return f"{self.kind.takes}, {_number(self.least)} or more"
        return f"{self.kind.takes} from {_number(self.least)} to {_number(self.most)}"

    def wrongs(self, value: object) -> list[Wrong]:
        """Return everything that is invalid about `value`."""
        found = list(self.kind.wrongs(value, self.takes))
        if not found and isinstance(value, int | float) and not self._within(value):
            found = [Wrong(given=value, takes=self.takes)]
        return found

    def _within(self, value: float) -> bool:
        most = MOST_INT if self.most is None and isinstance(value, int) else self.most
        return (self.least is None or value >= self.least) and (most is None or value <= most)


def takers(cls: type) -> dict[str, Taker]:
    """Return the kind and the bounds of each setting of a settings class."""
    hints = get_type_hints(cls)
    return {f.name: _taker(f, hints[f.name]) for f in fields(cls)}


def _taker(field: Field[Any], hint: object) -> Taker:
    kind = KINDS[_required(hint)]
    return Taker(kind=kind, least=field.metadata.get("least"), most=field.metadata.get("most"))


def _required(hint: object) -> object:
    """Return `int` for `int | None`: in a file, None is expressed by omitting the key."""
    if get_origin(hint) is types.UnionType:
        return next(a for a in get_args(hint) if a is not types.NoneType)
    return hint


def _number(bound: float | None) -> str:
    return "any" if bound is None else f"{bound:.12g}"


def _unless(fits: Callable[[object], bool]) -> Callable[[object, str], Iterator[Wrong]]:
    def wrongs(value: object, takes: str) -> Iterator[Wrong]:
        if not fits(value):
            yield Wrong(given=value, takes=takes)

    return wrongs


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_line(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_text(value: object) -> bool:
    """Return whether it is a string that an environment and a database can hold."""
    return isinstance(value, str) and "\0" not in value and not any("\ud800" <= c <= "\udfff" for c in value)


def _list_wrongs(value: object, takes: str) -> Iterator[Wrong]:
    if not isinstance(value, list | tuple):
        yield Wrong(given=value, takes=takes)
        return
    for index, item in enumerate(value):
        if not _is_text(item):
            yield Wrong(path=(str(index),), given=item, takes="a string")


def _table_wrongs(value: object, takes: str) -> Iterator[Wrong]:
    if not isinstance(value, Mapping):
        yield Wrong(given=value, takes=takes)
        return
    for key, item in value.items():
        if not _is_text(item):
            yield Wrong(path=(key,), given=item, takes="a string in quotes")


def _json_wrongs(value: object, takes: str) -> Iterator[Wrong]:
    if not isinstance(value, Mapping):
        yield Wrong(given=value, takes=takes)
        return
    yield from _unjsonable(value, ())


def _tables_wrongs(value: object, takes: str) -> Iterator[Wrong]:
    if not isinstance(value, list | tuple):
        yield Wrong(given=value, takes=takes)
        return
    for index, item in enumerate(value):
        if isinstance(item, Mapping):
            yield from _unjsonable(item, (str(index),))
        else:
            yield Wrong(path=(str(index),), given=item, takes="a table")


def _unjsonable(node: object, path: tuple[str, ...]) -> Iterator[Wrong]:
    if len(path) > MOST_DEEP:
        yield Wrong(given=node, takes=f"a table with at most {MOST_DEEP} levels of nesting")
    elif isinstance(node, Mapping):
        for key, item in node.items():
            yield from _unjsonable(item, (*path, key))
    elif isinstance(node, list | tuple):
        for index, item in enumerate(node):
            yield from _unjsonable(item, (*path, str(index)))
    elif not (isinstance(node, bool) or _is_number(node) or _is_text(node)):
        yield Wrong(
            path=path, given=node, takes="a JSON value: a string, a number, true, false, a list or a table"
        )


KINDS: dict[object, ValueKind] = {
    bool: ValueKind(
        takes="true or false",
        wrongs=_unless(lambda v: isinstance(v, bool)),
        from_text=lambda text: _BOOLS.get(text.strip().lower(), text),
    ),
    int: ValueKind(
        takes="a whole number",
        wrongs=_unless(_is_whole),
        from_text=lambda text: int(text.strip()) if _WHOLE.fullmatch(text.strip()) else text,
    ),
    float: ValueKind(takes="a number", wrongs=_unless(_is_number), keep=float),
    str: ValueKind(takes="a string on one line", wrongs=_unless(_is_line)),
    tuple[str, ...]: ValueKind(
        takes="a list of strings",
        wrongs=_list_wrongs,
        keep=tuple,
        from_text=lambda text: [part.strip() for part in text.split(",") if part.strip()],
    ),
    tuple[Mapping[str, Any], ...]: ValueKind(takes="a list of tables", wrongs=_tables_wrongs, keep=tuple),
    Mapping[str, str]: ValueKind(takes="a table of strings", wrongs=_table_wrongs, keep=dict),
    Mapping[str, Any]: ValueKind(takes="a table", wrongs=_json_wrongs, keep=dict),
}
