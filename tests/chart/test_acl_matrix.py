"""Every write command of a real server on every kind of key of the pool, for each user: refused
unless it is listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import pytest
import redis

from pool.broker import acl
from tests.support.acl_matrix import ADMIN_LINES, Command, category, may, writing_commands
from tests.support.helm import CHART, named, rendered, secret_values
from tests.support.redis_server import RedisServer

QUEUES = (
    "acquire",
    "acquire.general",
    "acquire.acme.",
    "acquire.acme.eu.",
    "acquire.bolt.",
    "fleet",
    "bind",
    "passes",
)
REPLIES = (
    "warmpool.reply.svc.1",
    "warmpool.reply.acme:svc.1",
    "warmpool.reply.acme.eu:svc.1",
    "warmpool.reply.bolt:svc.1",
)
RESULTS = (
    "celery-task-meta-1",
    "celery-task-meta-acme:1",
    "celery-task-meta-acme.eu:1",
    "celery-task-meta-bolt:1",
)
BOOKS = ("unacked", "unacked_index", "unacked_mutex")
OWN = ("warmpool.lock.reap", "warmpool.nonce.acme:1")
BINDINGS = ("_kombu.binding.acquire", "_kombu.binding.celery.pidbox")
REMOTE = ("1.reply.celery.pidbox",)
EVENTS = (
    "_kombu.binding.celeryev",
    "_kombu.binding_permanent.celeryev",
    "_kombu.binding_deadlines",
    "celeryev.1",
)
OTHERS = ("another.program", "acquisition", "celery")
KEYS = (*QUEUES, *REPLIES, *RESULTS, *BOOKS, *OWN, *BINDINGS, *REMOTE, *EVENTS, *OTHERS)
NO_KEY = "no key"

Allowed = Mapping[str, frozenset[str]]

SEND = frozenset({"lpush"})
LISTEN = frozenset({"blpop", "lpop", "rpush", "expire"})
FOLLOW = frozenset({"brpop", "del", "eval", "evalsha", "sadd", "srem", "zadd", "zrem"})
LOAD = frozenset({"script|load", "script|exists"})
PRODUCER: Allowed = {"acquire": SEND, **dict.fromkeys(REPLIES, LISTEN)}
ACME: Allowed = {"acquire.acme.": SEND, "warmpool.reply.acme:svc.1": LISTEN}
FLOWER: Allowed = {NO_KEY: LOAD, **dict.fromkeys(EVENTS, FOLLOW)}
# Without selectors: Celery results are no important lists, and an org can harm only its own queue.
PRODUCER_FLAT: Allowed = {"acquire": SEND, **dict.fromkeys(RESULTS, SEND)}
ACME_FLAT: Allowed = dict.fromkeys(
    ("acquire.acme.", "warmpool.reply.acme:svc.1", "celery-task-meta-acme:1"), SEND | LISTEN
)


def flat_file() -> str:
    """Return the shipped file without its passwords."""
    text = (CHART / "files" / "users-6.2.acl").read_text()
    return re.sub(r"#\{\{[^}]*\}\} ", "", text).strip()


@pytest.fixture(scope="module", params=list(acl.Dialect))
def dialect(request: pytest.FixtureRequest) -> acl.Dialect:
    found: acl.Dialect = request.param
    return found


@pytest.fixture(scope="module")
def admin(dialect: acl.Dialect) -> Iterator[redis.Redis]:
    if dialect is acl.Dialect.FLAT:
        shipped = flat_file()
    else:
        shipped = secret_values(named(rendered("trial"), "Secret", "wp-warmpool"))["users.acl"].strip()
    acme = acl.line("acme", acl.org_rules("acme", dialect), "password")
    with (
        RedisServer(acl=f"{shipped}\n{acme}\n{ADMIN_LINES}") as server,
        redis.Redis.from_url(server.url_of("admin", "any"), retry=None) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def commands(admin: redis.Redis) -> list[Command]:
    return list(writing_commands(admin))


def granted(admin: redis.Redis, user: str, commands: list[Command]) -> dict[str, set[str]]:
    """Return what the server permits this user, by key."""
    found: dict[str, set[str]] = {}
    for command in commands:
        for key in KEYS if command.has_key else (NO_KEY,):
            if may(admin, user, command, key):
                found.setdefault(key, set()).add(command.name)
    return found


def test_every_command_of_the_matrix_exists_on_the_server(
    admin: redis.Redis, commands: list[Command]
) -> None:
    """Otherwise a refusal would prove nothing: with all permissions each command is allowed, and
    without keys none that has one.
    """
    assert {c.name for c in commands} >= {
        "lpush",
        "rpush",
        "expire",
        "eval",
        "xgroup|create",
        "restore",
        "lmove",
    }
    assert [c.name for c in commands if not may(admin, "admin", c, "k")] == []
    assert [c.name for c in commands if c.has_key and may(admin, "keyless", c, "k")] == []


@pytest.mark.parametrize("user", ["producer", "flower", "acme"])
def test_each_user_is_refused_every_write_that_is_not_listed(
    admin: redis.Redis, commands: list[Command], dialect: acl.Dialect, user: str
) -> None:
    flat = dialect is acl.Dialect.FLAT
    expected = {
        "producer": PRODUCER_FLAT if flat else PRODUCER,
        "acme": ACME_FLAT if flat else ACME,
        "flower": FLOWER,
    }[user]
    assert granted(admin, user, commands) == expected


def test_the_control_plane_writes_the_pools_keys_and_no_others(
    admin: redis.Redis, commands: list[Command]
) -> None:
    written = category(admin, "write") - category(admin, "dangerous") - category(admin, "admin")
    known = {c.name for c in commands if c.has_key}
    own = (written | {"eval", "evalsha"}) & known
    pools = set(KEYS) - {*OTHERS, "celeryev.1"}
    assert granted(admin, "control", commands) == {NO_KEY: LOAD, **dict.fromkeys(pools, own)}


def test_acl_file_for_redis_6_2_uses_only_rules_of_6_2() -> None:
    text = (CHART / "files" / "users-6.2.acl").read_text()
    assert not any(word in text for word in ("%R~", "%W~", "%RW~", "(", "setinfo"))
    assert acl.producer_rules(acl.Dialect.FLAT) in text
    for rules in (acl.producer_rules(acl.Dialect.FLAT), acl.org_rules("acme", acl.Dialect.FLAT)):
        assert not any(word in rules for word in ("%", "(", "setinfo"))
