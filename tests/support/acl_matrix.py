"""Every command of a real server that writes, on a key: built from what the server itself says of its commands, judged by its own ACL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import redis

# Not shipped: a user that may do everything, and one that may do everything but has no keys.
ADMIN_LINES = "user admin on nopass ~* &* +@all\nuser keyless on nopass resetkeys resetchannels +@all\n"

# Commands whose keys cannot be read off a position, or whose words have to make sense.
_WORDS = {
    "blmpop": "0 1 {key} LEFT",
    "bzmpop": "0 1 {key} MIN",
    **dict.fromkeys(("eval", "eval_ro"), "return(1) 1 {key}"),
    **dict.fromkeys(("evalsha", "evalsha_ro"), "0123456789012345678901234567890123456789 1 {key}"),
    **dict.fromkeys(("fcall", "fcall_ro"), "f 1 {key}"),
    "lmpop": "1 {key} LEFT",
    "zmpop": "1 {key} MIN",
    "msetex": "1 {key} v",
    "migrate": "host 1 {key} 0 1",
    "pfmerge": "{key} {key}",
    "xreadgroup": "GROUP g c STREAMS {key} 0",
    "zdiffstore": "{key} 1 {key}",
    "zinterstore": "{key} 1 {key}",
    "zunionstore": "{key} 1 {key}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command or subcommand, and how it is asked on a key."""

    name: str
    words: str

    def on(self, key: str) -> list[str]:
        return [*self.name.upper().split("|"), *self.words.format(key=key).split()]

    @property
    def has_key(self) -> bool:
        return "{key}" in self.words


def writing_commands(admin: redis.Redis) -> Iterator[Command]:
    """What `ACL CAT` counts as writing or as scripting."""
    for name in sorted(category(admin, "write") | category(admin, "scripting")):
        yield Command(name=name, words=_WORDS.get(name) or _by_position(admin, name))


def category(admin: redis.Redis, name: str) -> set[str]:
    """The commands of one ACL category."""
    return {found.decode() for found in admin.execute_command("ACL", "CAT", name)}


def may(admin: redis.Redis, user: str, command: Command, key: str) -> bool:
    """Whether the server would let this user do it. A question that it cannot parse is an error."""
    answer = admin.execute_command("ACL", "DRYRUN", user, *command.on(key))
    return bool(answer == b"OK")


def _by_position(admin: redis.Redis, name: str) -> str:
    """As many words as the command takes, with the key wherever it expects one."""
    ((_, arity, _, first, last, step, *_),) = admin.execute_command("COMMAND INFO", name)
    words = ["1"] * max(abs(arity) - 1, first)
    if first > 0:
        for position in range(first, (last if last > 0 else len(words) + 1 + last) + 1, step):
            words[position - 1] = "{key}"
    return " ".join(words[name.count("|") :])
