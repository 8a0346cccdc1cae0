"""The rights of a producer's Redis user, as a line of an ACL file. Pure.

`charts/warmpool/files/users.acl` has the lines of the control plane, of Flower, and of the shared
producer (`producer_rules`). `users-6.2.acl` is the same for Redis 6.2.

A producer may only LPUSH to its queue. EXPIRE (which could delete a queue), BLPOP and RPUSH are
allowed on reply lists only.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum

from pool.core.errors import InvalidInput
from pool.core.names import ACQUIRE, REPLY_PREFIX, RESULT_PREFIX, queue_of, reply_prefix_of, task_prefix_of

# Users of the shipped file. A second line for one of them would replace its rights.
RESERVED_USERS = frozenset({"control", "default", "flower", "producer"})

_USER = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CONNECTING = (
    *("+hello", "+auth", "+ping", "+select", "+client|setname", "+client|id"),
    *("+multi", "+exec", "+discard", "+time", "+subscribe", "+unsubscribe"),
)
_SENDING = ("+lpush", "+get", "+mget")
_LISTENING = ("+blpop", "+lpop", "+rpush", "+expire")


class Dialect(StrEnum):
    """The oldest Redis version that accepts the line.

    Redis 6.2 has neither selectors nor read-only and write-only keys. Before 7.2, a file with
    CLIENT SETINFO does not load.
    """

    SELECTORS = "7.2"
    FLAT = "6.2"


def producer_rules(dialect: Dialect = Dialect.SELECTORS) -> str:
    """Return the rules of a producer on a queue that all producers share. Reply lists have names
    that cannot be guessed.

    Without selectors BLPOP would also be allowed on the shared queue. That line therefore serves
    Celery's results only, and the slim client is refused.
    """
    if dialect is Dialect.FLAT:
        return _flat(_SENDING, ACQUIRE, f"{RESULT_PREFIX}*", channels=f"{RESULT_PREFIX}*")
    return _selecting(ACQUIRE, REPLY_PREFIX, RESULT_PREFIX)


def org_rules(org: str, dialect: Dialect = Dialect.SELECTORS) -> str:
    """Return the rules of an org's producer, if every org has its own queue: it writes to that
    queue and reads its own answers.

    Without selectors it may also empty that queue, which has no messages of other orgs.
    """
    queue, replies, results = queue_of(org), reply_prefix_of(org), f"{RESULT_PREFIX}{task_prefix_of(org)}"
    if dialect is Dialect.FLAT:
        return _flat((*_SENDING, *_LISTENING), queue, f"{replies}*", f"{results}*", channels=f"{results}*")
    return _selecting(queue, replies, results)


def line(user: str, rules: str, password: str = "") -> str:
    """Return the whole ACL line. Without a password the user is off and cannot log in."""
    state = f"on #{hashlib.sha256(password.encode()).hexdigest()}" if password else "off"
    return f"user {user} {state} {rules}"


def checked_user(user: str) -> str:
    """Return the name if a user of that name may have an ACL line.

    The name is one word, so it cannot add rules.
    """
    if not _USER.fullmatch(user):
        raise InvalidInput("user", f"{user!r} must be 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    if user in RESERVED_USERS:
        own = ", ".join(sorted(RESERVED_USERS))
        raise InvalidInput("user", f"{user} is one of the pool's own ({own}); give another name with --user")
    return user


def _selecting(queue: str, replies: str, results: str) -> str:
    commands = " ".join((*_CONNECTING, "+client|setinfo", *_SENDING))
    keys = f"%W~{queue} %R~{results}* &{results}*"
    return f"resetchannels -@all {commands} {keys} ({' '.join(_LISTENING)} ~{replies}*)"


def _flat(commands: tuple[str, ...], *keys: str, channels: str) -> str:
    allowed = " ".join((*_CONNECTING, *commands))
    return f"resetchannels -@all {allowed} {' '.join(f'~{key}' for key in keys)} &{channels}"
