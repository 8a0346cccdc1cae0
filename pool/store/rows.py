"""Convert rows to records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sqlalchemy import Row

from pool.core.records import Claim, Org, ReplyTo, Request, SeenWorker
from pool.core.states import MoveReason, RequestState, Source, State
from pool.store.schema import workers

_SEEN = tuple(f.name for f in fields(SeenWorker))
# Only the columns of the record: every other column would also have to be read and converted.
SEEN = tuple(workers.c[name] for name in _SEEN)
_CLAIM = tuple(f.name for f in fields(Claim))
_ORG = tuple(f.name for f in fields(Org))
_REQUEST = tuple(f.name for f in fields(Request))


def seen(row: Row[Any]) -> SeenWorker:
    values = {k: row._mapping[k] for k in _SEEN}
    leaving = values["leaving_reason"]
    typed = {
        "state": State(values["state"]),
        "leaving_reason": None if leaving is None else MoveReason(leaving),
    }
    return SeenWorker(**values | typed)


def claim(row: Row[Any]) -> Claim:
    values = {k: row._mapping[k] for k in _CLAIM}
    return Claim(**values | {"source": Source(values["source"])})


def org(row: Row[Any]) -> Org:
    return Org(**{k: row._mapping[k] for k in _ORG})


def request(row: Row[Any]) -> Request:
    values = {k: row._mapping[k] for k in _REQUEST}
    replies = tuple(ReplyTo.of(*each) for each in values["replies"])
    return Request(**values | {"state": RequestState(values["state"]), "replies": replies})
