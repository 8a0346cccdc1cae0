"""What a Redis user of a producer may do, as a line of an ACL file. Pure. The control plane's and Flower's lines stand in
`charts/warmpool/files/users.acl`, whose producer is the one of this module that no org owns."""

from __future__ import annotations

import hashlib

from pool.signing import REPLY_PREFIX, queue_of, reply_prefix_of, task_prefix_of

_RESULTS = "celery-task-meta-"
_COMMANDS = (
    *("+hello", "+auth", "+ping", "+select", "+client|setname", "+client|setinfo", "+client|id"),
    *("+multi", "+exec", "+discard", "+time"),
    *("+lpush", "+rpush", "+blpop", "+lpop", "+expire", "+get", "+mget"),
    *("+subscribe", "+unsubscribe"),
)


def producer_rules() -> str:
    """Of any producer, where all of them share a queue: its answers are kept apart by names that nobody can guess."""
    return _rules("acquire", REPLY_PREFIX, _RESULTS)


def org_rules(org: str) -> str:
    """Of an org's producer, where every org has a queue of its own: it writes to that one and reads its own answers."""
    return _rules(queue_of(org), reply_prefix_of(org), f"{_RESULTS}{task_prefix_of(org)}")


def line(user: str, rules: str, password: str = "") -> str:
    """The whole line. Without a password the user is off: nobody comes in without one."""
    state = f"on #{hashlib.sha256(password.encode()).hexdigest()}" if password else "off"
    return f"user {user} {state} {rules}"


def _rules(queue: str, replies: str, results: str) -> str:
    keys = f"%W~{queue} ~{replies}* %R~{results}* &{results}*"
    return f"resetchannels -@all {' '.join(_COMMANDS)} {keys}"
