"""A seeded attacker: raw messages of every kind that a producer can push to Redis, most of them almost
valid.

On a pool with signed requests the attacker is a tenant with its own key. Each message names the
request that it may write, if any: any other row of the attacker was accepted by mistake.
"""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pool.core import names, signing
from pool.core.signing import OrgKey
from tests.support.hostile_draft import FOLLOWERS, Draft, Splice, deep, digits, follower, hostile_followers

CALLER_TASKS = ("pool.acquire", "pool.renew", "pool.release", "pool.cancel")
PASSES = (
    "reconcile_warm", "reap", "guard_disruption", "sweep_stuck", "sweep_orphans", "reconcile_headroom",
    "collect_garbage",
)  # fmt: skip
INTERNAL_TASKS = (
    "pool.spawn", "pool.retire", "pool.activate", "pool.stamp", "pool.refill", "pool.canary",
    *(f"pool.{name}" for name in PASSES),
)  # fmt: skip
QUEUES = ("acquire", "acquire.general", "fleet", "bind", "passes")
HEADERS = (
    "lang", "task", "id", "root_id", "parent_id", "shadow", "eta", "expires", "group", "group_index",
    "retries", "timelimit", "argsrepr",
    "kwargsrepr", "origin", "ignore_result", "replaced_task_nesting", "stamped_headers", "stamps",
    signing.HEADER, "warmpool_sent_s",
)  # fmt: skip
PROPERTIES = (
    "correlation_id", "reply_to", "delivery_mode", "priority", "delivery_info", "delivery_tag",
    "body_encoding",
)  # fmt: skip
ENVELOPE = ("body", "content-encoding", "content-type", "headers", "properties")
# No task accepts one of these as an argument, except as an id.
NEVER_RIGHT: tuple[Any, ...] = (
    -1, 0.5, 1e308, 2**70, True, [], {}, [[[]]], {"a": {"b": None}}, "", "x" * 5000, "\x00", "\ud800",
)  # fmt: skip
STRANGE: tuple[Any, ...] = (
    None, 0, 1, 5, "5", " ", "a b", "\u202e", "\r\nSET x 1\r\n", "'; DROP TABLE workers", "ü", "{0}", "%s",
    "a" * 257, *NEVER_RIGHT,
)  # fmt: skip
NO_IDS: tuple[Any, ...] = (
    "", 0, 5, 1.5, None, True, [], {}, ["a"], "\x00", "a\x00b", "\ud800", "a\nb", "ü", "a" * 257,
    "a" * 100_000,
)  # fmt: skip
NO_NUMBERS = (
    *(Splice(text) for text in ("NaN", "Infinity", "-Infinity", "1e999")),
    digits(21),
    digits(5_000),
)
LEVELS = (33, 100, 985, 5_000, 100_000)
SIZES = (1_000_001, 3_000_000, 9_900_000)
SIGNED_FOR_S = 300
# Number of messages kept for replay.
KEPT = 500


@cache
def bomb() -> bytes:
    """Return 50 MB of spaces, compressed."""
    return zlib.compress(b" " * 50_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One message, its queue, and the request that it may write."""

    kind: str
    queue: str
    raw: bytes
    may_write: str = ""

    def __str__(self) -> str:
        shown = self.raw if len(self.raw) <= 600 else self.raw[:500] + b"..." + self.raw[-100:]
        return f"{self.kind} -> {self.queue} ({len(self.raw)} bytes): {shown!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loot:
    """What the attacker has learned about another org."""

    org: str
    claim_ids: Sequence[str] = ()
    addresses: Sequence[str] = ()


class Attacker:
    """Generates messages from a seed. Without a key the pool accepts unsigned requests, and the
    attacker names its own org in them.
    """

    def __init__(self, seed: int, *, org: str, key: OrgKey | None, loot: Loot, now_s: float) -> None:
        self._chance = random.Random(seed)
        self._org = org
        self._key = key
        self._loot = loot
        self._expires_s = int(now_s) + SIGNED_FOR_S
        self._numbers = itertools.count()
        self._sent: list[Hostile] = []

    def learns(self, *, now_s: float, claim_ids: Sequence[str]) -> None:
        """The broker's time, so that signatures are valid, and claims that the other org holds now."""
        self._expires_s = int(now_s) + SIGNED_FOR_S
        self._loot = replace(self._loot, claim_ids=claim_ids)

    def next(self) -> Hostile:
        """Return the next message. Most are of one kind; some have two faults."""
        kind = self._chance.choice(list(KINDS))
        made = KINDS[kind](self)
        if isinstance(made, Hostile):
            return made
        number = next(self._numbers)
        if isinstance(made, bytes):
            return Hostile(kind=kind, queue=self._queue(), raw=made)
        draft, strict = made
        strict = self._signed(draft) or strict
        raw, request = draft.raw(f"tag-{number}"), draft.kwargs.get("request_id")
        may_write = (
            request if isinstance(request, str) and draft.task == "pool.acquire" and not strict else ""
        )
        found = Hostile(kind=kind, queue=self._queue(), raw=raw, may_write=may_write)
        if len(self._sent) < KEPT:
            self._sent.append(found)
        return found

    def _queue(self) -> str:
        return self._chance.choice(QUEUES) if self._chance.random() < 0.15 else "acquire"

    def _signed(self, draft: Draft) -> bool:
        """Sign it in most cases; return whether the pool must refuse it for its signature."""
        if self._key is None:
            return False
        if signing.HEADER in draft.headers or self._chance.random() < 0.25:
            return True
        draft.signed(
            self._key, expires_s=self._expires_s, nonce=f"nonce-of-the-attacker-{next(self._numbers)}"
        )
        return False

    # Kinds. Each returns bytes, or a draft and whether nothing of it may be written.

    def _call(self, task: str | None = None) -> Draft:
        """A valid call."""
        number, chance = next(self._numbers), self._chance
        task = task or chance.choice(CALLER_TASKS)
        org = {} if self._key and chance.random() < 0.3 else {"org": self._org}
        kwargs: dict[str, dict[str, Any]] = {
            "pool.acquire": {**org, "request_id": f"hostile-{number}", "lease_s": 5, "wait_s": chance.choice((0, 0, 1))},
            "pool.renew": {"claim_ids": [f"no-claim-{number}"]},
            "pool.release": {"claim_id": f"no-claim-{number}"},
            "pool.cancel": {**org, "request_id": f"hostile-{chance.randrange(number + 1)}"},
        }  # fmt: skip
        reply_to = f"{names.REPLY_PREFIX}attacker.{number % 7}" if chance.random() < 0.6 else ""
        return Draft(task=task, task_id=f"hostile-task-{number}", kwargs=kwargs[task], reply_to=reply_to)

    def _in_order(self) -> tuple[Draft, bool]:
        return self._call(), False

    def _bytes(self) -> bytes:
        chance, whole = self._chance, self._call().raw("tag")
        return chance.choice(
            (
                b"\x00", b"\xff\xfe", b"not json", b"[]", b"null", b'"text"', b"{}", b"5", b'{"body": 1}',
                b"NaN", whole[:-1], whole[1:],
                chance.randbytes(chance.randrange(1, 300)), whole[: chance.randrange(1, len(whole))],
                zlib.compress(whole),
                whole.decode().encode("utf-16"), whole.replace(b"hostile", b"\xff\xfe"), whole + whole,
                b"[" + whole + b"]",
            )
        )  # fmt: skip

    def _nested(self) -> tuple[Draft, bool] | bytes:
        chance, draft = self._chance, self._call()
        bomb = chance.choice((deep(chance.choice(LEVELS)), deep(chance.choice(LEVELS), '{"a":', "}")))
        match chance.randrange(4):
            case 0:
                return bomb.text.encode()
            case 1:
                draft.headers[chance.choice(("deep", *HEADERS))] = bomb
            case 2:
                draft.properties[chance.choice(("deep", *PROPERTIES))] = bomb
            case _:
                draft.kwargs["deep"] = bomb
        return draft, True

    def _numbered(self) -> tuple[Draft, bool]:
        chance, draft = self._chance, self._call("pool.acquire")
        where = chance.choice((draft.headers, draft.properties, draft.kwargs))
        names = {
            id(draft.headers): HEADERS,
            id(draft.properties): PROPERTIES,
            id(draft.kwargs): ("lease_s", "wait_s", "ttl_s"),
        }
        name = chance.choice(names[id(where)])
        where[name] = chance.choice(NO_NUMBERS)
        # A TTL that is too long is lowered, not refused.
        return draft, name != "ttl_s"

    def _named(self) -> tuple[Draft, bool]:
        draft = self._call()
        draft.task_id = self._chance.choice(NO_IDS)
        if self._chance.random() < 0.1:
            draft.without.add("id")
        return draft, True

    def _addressed(self) -> tuple[Draft, bool]:
        draft, strange = self._call(), self._chance.choice(NO_IDS)
        within = isinstance(strange, str) and bool(strange) and self._chance.random() < 0.7
        draft.reply_to = f"{names.REPLY_PREFIX}{strange}" if within else strange
        return draft, within

    def _wrong_header(self) -> tuple[Draft, bool]:
        draft = self._call()
        for _ in range(self._chance.choice((1, 1, 2, 5))):
            draft.headers[self._chance.choice(HEADERS)] = self._chance.choice(STRANGE)
        return draft, False

    def _wrong_property(self) -> tuple[Draft, bool]:
        draft = self._call()
        for _ in range(self._chance.choice((1, 1, 2, 5))):
            draft.properties[self._chance.choice(PROPERTIES)] = self._chance.choice(STRANGE)
        return draft, False

    def _without(self) -> tuple[Draft, bool]:
        draft = self._call()
        draft.without.add(self._chance.choice((*HEADERS, *PROPERTIES, *ENVELOPE)))
        return draft, False

    def _enveloped(self) -> tuple[Draft, bool]:
        draft, chance = self._call(), self._chance
        kinds = (
            "application/x-python-serialize",
            "application/x-yaml",
            "text/plain",
            "application/data",
            "application/json",
        )
        draft.envelope[chance.choice(ENVELOPE)] = chance.choice(
            (*STRANGE, *kinds, "latin-1", "binary", "utf-16")
        )
        return draft, False

    def _embodied(self) -> tuple[Draft, bool]:
        draft, chance = self._call(), self._chance
        inner = [[], draft.kwargs, {}]
        bodies = (
            *(
                b"",
                b"\xff",
                b"null",
                b"{}",
                b"[]",
                b"5",
                b"[[], {}]",
                b"[{}, [], {}]",
                b"[[], {}, []]",
                b"[[], {}, {}, {}]",
            ),
            *(
                json.dumps({"args": [], "kwargs": draft.kwargs, "task": draft.task, "id": "one"}).encode(),
                json.dumps(inner).encode()[:-1],
            ),
            *(b"[1, 2, 3]", b'["ab", "cd", "ef"]', b"[" * 2000, b"\x80\x04K\x05."),
        )
        draft.body = chance.choice(bodies)
        return draft, True

    def _compressed(self) -> tuple[Draft, bool]:
        draft = self._call("pool.acquire")
        draft.headers["compression"] = self._chance.choice(
            ("application/x-gzip", "gzip", "zlib", "nonsense", 5)
        )
        if self._chance.random() < 0.7:
            body = json.dumps([draft.args, draft.kwargs, {}]).encode()
            draft.body = self._chance.choice((zlib.compress(body), bomb()))
        return draft, True

    def _later(self) -> tuple[Draft, bool]:
        draft = self._call("pool.acquire")
        times: tuple[object, ...] = (
            *(
                "2999-01-01T00:00:00+00:00",
                "2999-01-01",
                "9" * 500,
                "0001-01-01T00:00:00",
                "tomorrow",
                "\x00",
                "2999-01-01T00:00:00+99:99",
            ),
            *(5, [], {}, True, -1e308),
        )
        draft.headers["eta"] = self._chance.choice(times)
        if self._chance.random() < 0.3:
            draft.headers["expires"] = self._chance.choice(times)
        return draft, draft.headers["eta"] == "2999-01-01T00:00:00+00:00"

    def _followed(self) -> tuple[Draft, bool]:
        chance = self._chance
        draft = self._call()
        if chance.random() < 0.5:
            draft.task, draft.kwargs = "pool.canary", {}
        task, kind = chance.choice(INTERNAL_TASKS), chance.choice(FOLLOWERS)
        own = follower(task)
        shapes: Any = ([own], [own], own, "pool.retire", [5], {"a": 1}, [[own]])
        if chance.random() < 0.7:
            shapes = hostile_followers(task, chance)
            if kind == "chord":
                shapes = [each[0] for each in shapes if len(each) == 1]
                draft.headers |= {
                    "group": chance.choice(("g", "\x00", 5)),
                    "group_index": chance.choice((0, "x")),
                }
        draft.embed[kind] = chance.choice(shapes)
        if draft.task == "pool.canary" and chance.random() < 0.7:
            draft.args = [1]
        if chance.random() < 0.3:
            draft.reply_to = 5
        return draft, True

    def _internal(self) -> tuple[Draft, bool]:
        chance, number = self._chance, next(self._numbers)
        names = ("worker_id", "claim_id", "epoch", "profile", "others", "surplus")
        kwargs = {name: chance.choice(STRANGE) for name in names if chance.random() < 0.4}
        draft = Draft(
            task=chance.choice((*INTERNAL_TASKS, "no.such.task")),
            task_id=f"hostile-task-{number}",
            kwargs=kwargs,
        )
        draft.headers["ignore_result"] = True
        return draft, True

    def _argued(self) -> tuple[Draft, bool]:
        chance, draft = self._chance, self._call()
        field = {
            "pool.acquire": ("org", "profile", "lease_s", "ttl_s", "wait_s"),
            "pool.renew": ("claim_ids",),
        }
        name = chance.choice(field.get(draft.task, ("claim_id", "condition", "org", "request_id")))
        draft.kwargs[name] = wrong = chance.choice(NEVER_RIGHT)
        if chance.random() < 0.2:
            draft.args = [chance.choice(STRANGE) for _ in range(chance.randrange(1, 9))]
        # A TTL that is too long is lowered, not refused.
        return draft, name != "ttl_s" or wrong not in (1e308, 2**70)

    def _doubled(self) -> bytes:
        """Duplicate keys, the second with another value."""
        raw = self._call("pool.cancel").raw("tag")
        more = (
            b', "headers": {"id": 5, "task": "pool.retire"}}'
            if self._chance.random() < 0.5
            else b', "properties": null}'
        )
        return raw[:-1] + more

    def _large(self) -> tuple[Draft, bool] | bytes:
        # Rare, or it becomes an attack on the network.
        if self._chance.random() > 0.1:
            return self._bytes()
        draft, size = self._call("pool.acquire"), self._chance.choice(SIZES)
        where = self._chance.choice((draft.headers, draft.properties, draft.kwargs))
        where["large"] = self._chance.choice(
            ("x" * size, "\x00" * (size // 6), Splice("[" + "0," * (size // 2) + "0]"))
        )
        return draft, True

    def _again(self) -> tuple[Draft, bool] | Hostile:
        return replace(self._chance.choice(self._sent), kind="replay") if self._sent else self._in_order()

    def _stolen(self) -> tuple[Draft, bool]:
        """With another org's name, claims or reply address. An unsigned pool trusts names and claim
        ids, so only the address is tried there.
        """
        chance, draft = self._chance, self._call()
        if self._key is not None:
            claims = list(self._loot.claim_ids) or ["no-claim"]
            stolen = {"org": self._loot.org, "claim_id": chance.choice(claims), "claim_ids": claims}
            draft.kwargs |= {name: stolen[name] for name in draft.kwargs if name in stolen}
        if self._loot.addresses and chance.random() < 0.5:
            draft.reply_to = chance.choice(self._loot.addresses)
        return draft, draft.kwargs.get("org") == self._loot.org

    def _forged(self) -> tuple[Draft, bool]:
        chance, draft = self._chance, self._call()
        words = (
            "1",
            self._loot.org,
            "1",
            str(self._expires_s),
            f"nonce-of-another-{next(self._numbers)}",
            "0" * 64,
        )
        wrong: tuple[object, ...] = (
            ":".join(words),
            ":".join(words[:4]),
            "1:::::",
            "x" * 100_000,
            5,
            [],
            {},
            True,
            "\x00",
            "9" * 300,
        )
        draft.headers[signing.HEADER] = chance.choice(wrong)
        return draft, self._key is not None

    def _from(self) -> tuple[Draft, bool]:
        draft = self._call()
        draft.headers["origin"] = self._chance.choice(
            (*STRANGE, "\x00", "a\x00b", "x" * 100_000, "\ud800\x00", "\x1b[2J")
        )
        return draft, False

    def _traced(self) -> tuple[Draft, bool]:
        draft = self._call()
        draft.headers["traceparent"] = self._chance.choice(
            (
                *STRANGE,
                "\x00",
                "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
                "x" * 100_000,
                "\ud800\x00",
                7,
                [],
                {},
            )
        )
        return draft, False


Made = tuple[Draft, bool] | Hostile | bytes
KINDS: dict[str, Callable[[Attacker], Made]] = {
    "in order": Attacker._in_order,
    "bytes": Attacker._bytes,
    "nested": Attacker._nested,
    "number": Attacker._numbered,
    "id": Attacker._named,
    "address": Attacker._addressed,
    "header": Attacker._wrong_header,
    "property": Attacker._wrong_property,
    "missing part": Attacker._without,
    "envelope": Attacker._enveloped,
    "body": Attacker._embodied,
    "compression": Attacker._compressed,
    "eta": Attacker._later,
    "follower": Attacker._followed,
    "internal task": Attacker._internal,
    "argument": Attacker._argued,
    "key twice": Attacker._doubled,
    "large": Attacker._large,
    "replay": Attacker._again,
    "stolen": Attacker._stolen,
    "forged": Attacker._forged,
    "origin": Attacker._from,
    "trace": Attacker._traced,
}
