"""The URL of the broker, checked in one place for the client and the server. Pure.

redis://USER:PASSWORD@HOST:PORT/N                  one server; rediss:// with TLS
unix://USER:PASSWORD@/PATH?db=N                    a Unix socket; redis+socket:// is the same
sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/N    the primary that the sentinels name;
                                                   sentinels:// with TLS
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from pool.core.errors import InvalidInput

TAKES = (
    "redis://HOST:PORT/N, rediss://HOST:PORT/N, unix:///PATH?db=N, sentinel://HOST:PORT,HOST:PORT/MASTER/N "
    "or sentinels://HOST:PORT,HOST:PORT/MASTER/N"
)
NO_CLUSTER = (
    "the URL of one primary, for example sentinel:// or redis://: a Redis Cluster is not supported, because "
    "one command of the pool uses keys of several slots"
)
SENTINEL_PORT = 26379
_PORT = 6379
_TLS = {"rediss": True, "redis": False, "sentinels": True, "sentinel": False}
_SOCKETS = ("unix", "redis+socket")
_SENTINEL_OPTIONS = {"sentinel_username": "username", "sentinel_password": "password"}
_ENCODE = "; write the characters / ? # @ of a user or password as %2F %3F %23 %40"

Host = tuple[str, int]


class InvalidUrl(InvalidInput):
    """The broker's URL is malformed, or it names something that cannot be the broker of a pool."""

    def __init__(self, url: str, takes: str) -> None:
        super().__init__("url", f"is {hidden(url)!r}; it must be {takes}")
        self.takes = takes


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUrl:
    """The parts of a URL. Either `hosts` or `path` is set; `master` only for sentinels."""

    hosts: tuple[Host, ...] = ()
    path: str = ""
    master: str = ""
    tls: bool = False
    # For redis-py: the user, the password, the number of the database, and the options.
    server: str
    # The user and the password of the sentinels.
    sentinel: Mapping[str, str]


def parse(url: str) -> BrokerUrl:
    """Return the parts of a URL, or raise `InvalidUrl` with what is allowed."""
    try:
        parts = urlsplit(url)
        return _parse(url, parts)
    except InvalidUrl:
        raise
    except ValueError as exc:
        raise InvalidUrl(url, TAKES + (_ENCODE if "@" in url else "")) from exc


def redacted(url: str) -> str:
    """Return the URL without its password and its options; an option may be the password."""
    try:
        parts = urlsplit(url)
        user = f"{parts.username or ''}:***@" if parts.password else ""
    except ValueError:
        return hidden(url)
    place = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}{place}{parts.path}"


def hidden(url: str) -> str:
    """Return a URL that may be malformed, without its user, its password and its options."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", url, flags=re.DOTALL), flags=re.DOTALL)


def _parse(url: str, parts: SplitResult) -> BrokerUrl:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme in ("redis+cluster", "rediss+cluster"):
        raise InvalidUrl(url, NO_CLUSTER)
    if "://" not in url or not (parts.scheme in _TLS or parts.scheme in _SOCKETS) or parts.fragment:
        raise ValueError("scheme")
    place = parts.netloc.rpartition("@")[2]
    if parts.scheme in _SOCKETS:
        return _of_socket(parts, place, options)
    hosts = tuple(
        _host(word, SENTINEL_PORT if "sentinel" in parts.scheme else _PORT) for word in place.split(",")
    )
    words = [unquote(word) for word in parts.path.split("/")[1:]]
    tls = _TLS[parts.scheme]
    if parts.scheme.startswith("redis"):
        if len(hosts) > 1:
            raise InvalidUrl(url, "the URL of one server; for several hosts use sentinel://")
        return BrokerUrl(hosts=hosts, tls=tls, server=_server(parts, _one(words), options), sentinel={})
    master, *rest = words or [""]
    if not master:
        raise InvalidUrl(
            url, "sentinel://HOST:PORT,HOST:PORT/MASTER/N, with the name of the primary as MASTER"
        )
    sentinel = {_SENTINEL_OPTIONS[k]: options.pop(k) for k in _SENTINEL_OPTIONS if k in options}
    server = _server(parts, _one(rest), options)
    return BrokerUrl(hosts=hosts, master=master, tls=tls, server=server, sentinel=sentinel)


def _of_socket(parts: SplitResult, place: str, options: dict[str, str]) -> BrokerUrl:
    if place or not parts.path.strip("/"):
        raise ValueError("path")
    db = options.pop("virtual_host", "").strip("/")
    return BrokerUrl(path=unquote(parts.path), server=_server(parts, db, options), sentinel={})


def _host(word: str, port: int) -> Host:
    found = urlsplit(f"//{word}")
    if not found.hostname or found.path or found.port == 0:
        raise ValueError("host")
    return found.hostname, found.port or port


def _one(words: list[str]) -> str:
    """Return the number of the database, which is the only word left."""
    if len(words) > 1 and words[1:] != [""]:
        raise ValueError("path")
    return words[0] if words else ""


def _server(parts: SplitResult, db: str, options: dict[str, str]) -> str:
    """Return a URL without a place, from which redis-py reads the credentials and the options."""
    number = options.pop("db", db) or "0"
    if not number.isascii() or not number.isdigit():
        raise ValueError("db")
    user, at, _ = parts.netloc.rpartition("@")
    return f"redis://{user}{at}/{number}?{urlencode(options)}"
