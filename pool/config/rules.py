"""Check single settings beyond their type: names, addresses, paths. Each rule yields what is
invalid. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pool.config import podrules
from pool.config.kinds import Wrong
from pool.core import brokerurl, database_url
from pool.core.names import ENV_PREFIX, ENV_TEST_PREFIX, QUEUES, RESERVED_PREFIXES
from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile

Rule = Callable[[Any], Iterator[Wrong]]

DRIVERS = ("local", "kubernetes")
LEAST_KEY_CHARS = 32
# A previous key may be shorter, so that a short key can be replaced.
LEAST_OLD_KEY_CHARS = 16

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VALUE_KEY = re.compile(r"[A-Za-z0-9_.-]+")
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,127}")
_URL_PATH = re.compile(r"/[^\s?#]*(?:\?[^\s#]*)?")
_DATABASE_TAKES = f"{database_url.TAKES}, or empty for the embedded server"


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
            takes=f"at least {LEAST_KEY_CHARS} characters long, or empty to generate one under data_dir",
        )


def _next_master_key(value: str) -> Iterator[Wrong]:
    if value and len(value.strip()) < LEAST_KEY_CHARS:
        yield Wrong(given=value, takes=f"at least {LEAST_KEY_CHARS} characters long, or empty")


def _previous_master_key(value: str) -> Iterator[Wrong]:
    if value and len(value.strip()) < LEAST_OLD_KEY_CHARS:
        yield Wrong(given=value, takes=f"at least {LEAST_OLD_KEY_CHARS} characters long, or empty")


def _database_url(value: str) -> Iterator[Wrong]:
    if value and database_url.parsed(value) is None:
        yield Wrong(given=brokerurl.hidden(value), takes=_DATABASE_TAKES)


def _broker_url(value: str) -> Iterator[Wrong]:
    if not value:
        return
    try:
        brokerurl.parse(value)
    except brokerurl.InvalidUrl as exc:
        yield Wrong(given=brokerurl.hidden(value), takes=f"{exc.takes}, or empty for the embedded server")


def _follower_queues(value: tuple[str, ...]) -> Iterator[Wrong]:
    for name in value:
        own = any(name == each or name.startswith(f"{each}.") for each in QUEUES)
        if own or not _QUEUE.fullmatch(name) or name.startswith(RESERVED_PREFIXES):
            yield Wrong(given=name, takes="names of queues of your own Celery apps, none of the pool's keys")


def _well_formed(url: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and "://" in url and port != 0


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
                takes="a variable name: letters, digits and _, not starting with a digit",
            )
        elif name.startswith(ENV_PREFIX) and not name.startswith(ENV_TEST_PREFIX):
            yield Wrong(
                path=(name,),
                verb="is named",
                given=name,
                takes=f"a name that does not begin with {ENV_PREFIX}, which is reserved",
            )


def _url_path(value: str) -> Iterator[Wrong]:
    if value and not _URL_PATH.fullmatch(value):
        yield Wrong(given=value, takes="a path that begins with /, or empty")


def _values(value: Mapping[str, str]) -> Iterator[Wrong]:
    for name in value:
        if not _VALUE_KEY.fullmatch(name):
            yield Wrong(
                path=(name,),
                verb="is named",
                given=name,
                takes='made of letters, digits and the characters "." "_" "-"; activation_payload refers to it as {values.KEY}',
            )


RULES: dict[tuple[type, str], Rule] = {
    (PoolSettings, "driver"): _driver,
    (PoolSettings, "data_dir"): _data_dir,
    (PoolSettings, "master_key"): _master_key,
    (PoolSettings, "master_key_previous"): _previous_master_key,
    (PoolSettings, "master_key_next"): _next_master_key,
    (PoolSettings, "database_url"): _database_url,
    (PoolSettings, "broker_url"): _broker_url,
    (PoolSettings, "follower_queues"): _follower_queues,
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
