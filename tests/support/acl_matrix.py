"""Every writing command of a real Redis server, applied to a key. The list is built from the
server's own command table, and the server's ACL decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import redis

# Not shipped: a user with all permissions, and one with all commands and no keys.
ADMIN_LINES = "user admin on nopass ~* &* +@all\nuser keyless on nopass resetkeys resetchannels +@all\n"

# Commands whose keys have no fixed position, or whose arguments must be valid.
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
    """One command or subcommand, and its arguments for a key."""

    name: str
    words: str

    def on(self, key: str) -> list[str]:
        return [*self.name.upper().split("|"), *self.words.format(key=key).split()]

    @property
    def has_key(self) -> bool:
        return "{key}" in self.words


def writing_commands(admin: redis.Redis) -> Iterator[Command]:
    """Return the commands that `ACL CAT` lists as writing or scripting."""
    for name in sorted(category(admin, "write") | category(admin, "scripting")):
        yield Command(name=name, words=_WORDS.get(name) or _by_position(admin, name))


def category(admin: redis.Redis, name: str) -> set[str]:
    """Return the commands of one ACL category."""
    return {found.decode() for found in admin.execute_command("ACL", "CAT", name)}


def may(admin: redis.Redis, user: str, command: Command, key: str) -> bool:
    """Return whether the server permits the command to this user. A command that it cannot parse is
    an error.
    """
    answer = admin.execute_command("ACL", "DRYRUN", user, *command.on(key))
    return bool(answer == b"OK")


def _by_position(admin: redis.Redis, name: str) -> str:
    """Return the fewest arguments that the command accepts, with the key at each key position."""
    ((_, arity, _, first, last, step, *_),) = admin.execute_command("COMMAND INFO", name)
    words = ["1"] * max(abs(arity) - 1, first)
    if first > 0:
        for position in range(first, (last if last > 0 else len(words) + 1 + last) + 1, step):
            words[position - 1] = "{key}"
    return " ".join(words[name.count("|") :])
