"""What single settings take beyond their type: names, addresses, paths. Each rule yields what is wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pool.config import podrules
from pool.config.kinds import Wrong
from pool.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile

Rule = Callable[[Any], Iterator[Wrong]]

DRIVERS = ("local", "kubernetes")
LEAST_KEY_CHARS = 32
# What was enough before: such a key is still honoured while it is replaced.
LEAST_OLD_KEY_CHARS = 16
ORG_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
ORG_NAME_TAKES = "1 to 128 of the characters A-Z a-z 0-9 . _ -"
PROFILE_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
PROFILE_NAME_TAKES = "1 to 63 of the characters a-z 0-9 -, with no dash first or last"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_URL_PATH = re.compile(r"/[^\s?#]*(?:\?[^\s#]*)?")
_DATABASE_SCHEMES = ("postgresql", "postgresql+psycopg", "postgres", "sqlite")
_BROKER_SCHEMES = ("redis", "rediss")
_DATABASE_TAKES = "postgresql://USER:PASSWORD@HOST/NAME, sqlite:///FILE, or nothing for SQLite under data_dir"
_BROKER_TAKES = "redis://HOST:PORT/N, rediss://HOST:PORT/N, or nothing for the embedded server"


def redacted(url: str) -> str:
    """A URL without what may be secret in it."""
    return re.sub(r"\?.*", "?***", re.sub(r"//.*@", "//***@", url))


def _driver(value: str) -> Iterator[Wrong]:
    if value not in DRIVERS:
        yield Wrong(given=value, takes=" or ".join(DRIVERS))


def _data_dir(value: str) -> Iterator[Wrong]:
    if not value.strip():
        yield Wrong(given=value, takes="the path of a directory")


def _master_key(value: str) -> Iterator[Wrong]:
    if value and len(value.strip()) < LEAST_KEY_CHARS:
        yield Wrong(
            given=value,
            takes=f"{LEAST_KEY_CHARS} characters or more, or nothing to have one made under data_dir",
        )


def _next_master_key(value: str) -> Iterator[Wrong]:
    if value and len(value.strip()) < LEAST_KEY_CHARS:
        yield Wrong(given=value, takes=f"{LEAST_KEY_CHARS} characters or more, or nothing")


def _previous_master_key(value: str) -> Iterator[Wrong]:
    if value and len(value.strip()) < LEAST_OLD_KEY_CHARS:
        yield Wrong(given=value, takes=f"{LEAST_OLD_KEY_CHARS} characters or more, or nothing")


def _database_url(value: str) -> Iterator[Wrong]:
    if value and not _well_formed(value, _DATABASE_SCHEMES):
        yield Wrong(given=redacted(value), takes=_DATABASE_TAKES)
    elif value.startswith("sqlite") and not _names_a_file(value):
        yield Wrong(
            given=redacted(value), takes="sqlite:///FILE: processes share the database, so it must be a file"
        )


def _broker_url(value: str) -> Iterator[Wrong]:
    if value and not (_well_formed(value, _BROKER_SCHEMES) and urlsplit(value).hostname):
        yield Wrong(given=redacted(value), takes=_BROKER_TAKES)


def _well_formed(url: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and "://" in url and port != 0


def _names_a_file(url: str) -> bool:
    parts = urlsplit(url)
    return not parts.netloc and len(parts.path) > 1 and parts.path != "/:memory:"


def _image(value: str) -> Iterator[Wrong]:
    if not value or any(c.isspace() for c in value):
        yield Wrong(given=value, takes="the name of an image, without spaces")


def _env(value: Mapping[str, str]) -> Iterator[Wrong]:
    for name in value:
        if not _VARIABLE.fullmatch(name):
            yield Wrong(
                path=(name,),
                verb="is named",
                given=name,
                takes="a variable name: letters, digits and _, no digit first",
            )
        elif name.startswith("WARMPOOL_") and not name.startswith("WARMPOOL_TEST_"):
            yield Wrong(
                path=(name,),
                verb="is named",
                given=name,
                takes="any name that does not begin with WARMPOOL_, which is reserved",
            )


def _url_path(value: str) -> Iterator[Wrong]:
    if value and not _URL_PATH.fullmatch(value):
        yield Wrong(given=value, takes="a path that begins with /, or nothing")


def _values(value: Mapping[str, str]) -> Iterator[Wrong]:
    for name in value:
        if not _VALUE_KEY.fullmatch(name):
            yield Wrong(
                path=(name,),
                verb="is named",
                given=name,
                takes="a key of letters, digits, . _ and -, as {values.KEY} names it",
            )


RULES: dict[tuple[type, str], Rule] = {
    (PoolSettings, "driver"): _driver,
    (PoolSettings, "data_dir"): _data_dir,
    (PoolSettings, "master_key"): _master_key,
    (PoolSettings, "master_key_previous"): _previous_master_key,
    (PoolSettings, "master_key_next"): _next_master_key,
    (PoolSettings, "database_url"): _database_url,
    (PoolSettings, "broker_url"): _broker_url,
    (Profile, "image"): _image,
    (Profile, "env"): _env,
    (Profile, "activation_path"): _url_path,
    (Profile, "probe_path"): _url_path,
    (Profile, "service_account"): podrules.object_name,
    (Profile, "node_selector"): podrules.selector,
    (Profile, "tolerations"): podrules.tolerations,
    (Profile, "runtime_class"): podrules.object_name,
    (Profile, "priority_class"): podrules.object_name,
    (Profile, "readiness_path"): _url_path,
    (Profile, "volumes"): podrules.volumes,
    (Profile, "mounts"): podrules.mounts,
    (Profile, "pod_labels"): podrules.pod_labels,
    (Profile, "pod_annotations"): podrules.pod_annotations,
    (KubernetesSettings, "namespace"): podrules.namespace,
    (KubernetesSettings, "anchor"): podrules.anchor,
    (KubernetesSettings, "pull_secrets"): podrules.object_names,
    (KubernetesSettings, "worker_priority_class"): podrules.object_name,
    (KubernetesSettings, "placeholder_priority_class"): podrules.object_name,
    (OrgDefaults, "values"): _values,
}
