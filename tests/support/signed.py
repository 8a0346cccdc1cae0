"""Forged requests: messages built by hand, each part of which a test may change, and their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import redis
from sqlalchemy import func, select

from pool.client.messages import Message
from pool.core import names, signing
from pool.core.ids import RandomIds, new_task_id
from pool.core.signing import HEADER, Asked, OrgKey
from pool.store import audit, schema
from pool.store.audit import AuditEntry
from tests.support.system import ROOT, System
from tests.support.waiting import eventually

MASTER_KEY = "a master key that only tests know"
WITHIN_S = 20.0


def key_of(org: str, version: int = 1, *, master: str = MASTER_KEY, own_queue: bool = False) -> OrgKey:
    return signing.org_key(master.encode(), org, version, own_queue=own_queue)


class SignedCaller:
    """A sender that can push to the queue and read one reply list."""

    def __init__(self, system: System, name: str = "test") -> None:
        self.system = system
        self.redis = redis.Redis.from_url(system.redis.url)
        self.address = f"{names.REPLY_PREFIX}{name}.{RandomIds().token()}"

    def now_s(self) -> float:
        return float(self.redis.time()[0])

    def message(self, task: str, kwargs: Mapping[str, Any], *, reply_to: str | None = None) -> Message:
        address = self.address if reply_to is None else reply_to
        return Message(
            task=task, kwargs=dict(kwargs), task_id=new_task_id(), origin="forger@test", reply_to=address
        )

    def signature(self, message: Message, key: OrgKey, *, valid_s: int = 300) -> str:
        address = message.reply_to if message.reply_to.startswith(names.REPLY_PREFIX) else ""
        asked = Asked(
            task=message.task, task_id=message.task_id, address=address, args=[], kwargs=message.kwargs
        )
        expires_s = int(self.now_s()) + valid_s
        return signing.sign(key, asked, expires_s=expires_s, nonce=RandomIds().token())

    def push(self, message: Message, signature: str | None) -> str:
        """Push it to the queue; return what was pushed."""
        more = {} if signature is None else {HEADER: signature}
        raw = message.encoded(new_task_id(), more)
        self.redis.lpush("acquire", raw)
        return raw

    def answer(self, address: str = "") -> dict[str, Any]:
        popped = self.redis.blpop([address or self.address], timeout=WITHIN_S)
        assert popped is not None, f"no answer\n{self.system.tails()}"
        meta = json.loads(popped[1])
        assert meta["status"] == "SUCCESS", meta
        return dict(meta["result"])

    def ask(self, task: str, key: OrgKey, **kwargs: Any) -> dict[str, Any]:
        """Return a complete, valid message."""
        message = self.message(task, kwargs)
        self.push(message, self.signature(message, key))
        return self.answer()

    def granted(self, org: str, **kwargs: Any) -> dict[str, Any]:
        answer = self.ask("pool.acquire", key_of(org), org=org, **{"wait_s": 20, **kwargs})
        assert answer["outcome"] == "granted", answer
        return answer

    def nothing_came(self) -> bool:
        return not self.redis.llen(self.address)

    def close(self) -> None:
        self.redis.close()


def written(system: System) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything that callers can change, row by row, leases included. Left out: workers
    without an org, which passes create and drain, and the mark of a delivered answer, which is
    written a moment later.
    """
    tables = (schema.requests, schema.claims, schema.orgs, schema.workers, schema.journal)
    with system.store.read() as tx:
        return {table.name: [tuple(r) for r in tx.execute(_rows(table))] for table in tables}


def _rows(table: Any) -> Any:
    columns = [column for column in table.c if column.name != "replied_at"]
    found = select(*columns).order_by(*table.primary_key)
    return found.where(table.c.org.is_not(None)) if "org" in table.c else found


def refusals(system: System) -> list[AuditEntry]:
    with system.store.read() as tx:
        return audit.latest(tx, limit=0, refused=1000)


@contextmanager
def refused_and_nothing_else(system: System, words: str) -> Iterator[None]:
    """Check that the block causes one refusal that is journalled, and no other change."""
    before, known = written(system), len(refusals(system))
    yield
    # A refusal of an earlier test may still arrive.
    eventually(lambda: any(words in deed.why for deed in refusals(system)[known:]), within_s=WITHIN_S)
    assert all(deed.who.startswith("unproven caller") for deed in refusals(system)[known:])
    assert written(system) == before


def count(system: System, table: Any) -> int:
    with system.store.read() as tx:
        return int(tx.execute(select(func.count()).select_from(table)).scalar_one())


def recipe() -> str:
    """Return the code block of docs/security.md that signs."""
    blocks = (ROOT / "docs" / "security.md").read_text().split("```python\n")[1:]
    return next(block.split("```")[0] for block in blocks if "def ask(" in block)
