"""Counts of the current state, for metrics.

A few statements, each on an index of live rows; ended rows are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Float, case, cast, func, select, true
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from pool.core.states import CLAIMED, LIVE, RequestState, State
from pool.store.engine import Tx
from pool.store.idle_cost import KEPT, IdleReason
from pool.store.schema import claims as C
from pool.store.schema import idle_spent as I
from pool.store.schema import orgs as O
from pool.store.schema import requests as R
from pool.store.schema import suspects as X
from pool.store.schema import workers as W
from pool.store.sql import now, plus, word, words
from pool.store.suspects import PROBE_FAILURES, SuspectKind


class seconds(FunctionElement[float]):  # noqa: N801 - reads as SQL
    """`seconds(later, earlier)`: the difference of two instants in seconds, at least 0."""

    type = Float()
    name = "seconds"
    inherit_cache = True


@compiles(seconds)
def _seconds(element: seconds, compiler: SQLCompiler, **kw: Any) -> str:
    later, earlier = (compiler.process(c, **kw) for c in element.clauses)
    # Not EXTRACT, which computes with NUMERIC: over many rows that is several times slower.
    return f"GREATEST(0.0, date_part('epoch', {later} - {earlier}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The resources used for one reason so far."""

    vcpu_s: float = 0.0
    gib_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(vcpu_s=self.vcpu_s + other.vcpu_s, gib_s=self.gib_s + other.gib_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRows:
    """Live workers by profile and state, and the resources that they have used while idle."""

    counts: Mapping[tuple[str, State], int]
    spent: Mapping[tuple[str, IdleReason], Spent]


def unhealthy_in_use(tx: Tx) -> int:
    """Count the workers in use that do not answer their probe."""
    statement = (
        select(func.count())
        .select_from(X.join(W, X.c.subject == W.c.id))
        .where(X.c.kind == word(SuspectKind.PROBE), X.c.runs >= PROBE_FAILURES, W.c.state.in_(words(CLAIMED)))
    )
    return int(tx.execute(statement).scalar_one())


def live_rows(tx: Tx) -> LiveRows:
    """Read all live rows once. Periods that have not ended are counted up to now."""
    at = select(now().label("at")).cte("at")
    columns = [func.sum(_idle_s(reason, at.c.at)).label(reason) for reason in IdleReason]
    size = (W.c.cpu_millicores, W.c.memory_mib)
    statement = (
        select(W.c.profile, W.c.state, *size, func.count().label("count"), *columns)
        .select_from(W.join(at, true()))
        .where(W.c.state.in_(sorted(LIVE)))
        .group_by(W.c.profile, W.c.state, *size)
    )
    counts: dict[tuple[str, State], int] = {}
    spent: dict[tuple[str, IdleReason], Spent] = {}
    for row in tx.execute(statement).mappings():
        key = row["profile"], State(row["state"])
        counts[key] = counts.get(key, 0) + int(row["count"])
        for reason in IdleReason:
            s = float(row[reason])
            more = Spent(vcpu_s=s * row["cpu_millicores"] / 1000, gib_s=s * row["memory_mib"] / 1024)
            spent[row["profile"], reason] = spent.get((row["profile"], reason), Spent()) + more
    return LiveRows(counts=counts, spent=spent)


def _idle_s(reason: IdleReason, at: ColumnElement[Any]) -> ColumnElement[float]:
    """Return the seconds of one kind in a live row, including the current period."""
    current: dict[IdleReason, tuple[State, ColumnElement[float]]] = {
        IdleReason.STARTING: (State.SPAWNING, seconds(at, W.c.state_since)),
        IdleReason.WARM: (State.IDLE, seconds(at, W.c.state_since)),
        IdleReason.PARKED: (
            State.HOT_IDLE,
            seconds(case((W.c.hot_idle_until < at, W.c.hot_idle_until), else_=at), W.c.state_since),
        ),
        IdleReason.OVERDUE: (State.HOT_IDLE, seconds(at, W.c.hot_idle_until)),
        IdleReason.LEAVING: (State.DRAINING, seconds(at, W.c.state_since)),
    }
    state, period_s = current[reason]
    open_s: ColumnElement[float] = case((W.c.state == state, period_s), else_=0.0)
    return open_s + W.c[f"{reason}_s"] if reason in KEPT else open_s


def spent_before(tx: Tx) -> dict[tuple[str, IdleReason], Spent]:
    """Return the resources used by workers that have ended."""
    return {
        (r.profile, IdleReason(r.reason)): Spent(vcpu_s=r.vcpu_s, gib_s=r.gib_s)
        for r in tx.execute(select(I))
    }


def waiting(tx: Tx) -> dict[str, tuple[int, float]]:
    """Return, by profile, the number of waiters and the age of the oldest in seconds."""
    oldest = seconds(now(), func.min(R.c.created_at))
    statement = select(R.c.profile, func.count().label("count"), oldest.label("oldest_s"))
    statement = statement.where(R.c.state == RequestState.WAITING).group_by(R.c.profile)
    return {r.profile: (int(r._mapping["count"]), float(r.oldest_s)) for r in tx.execute(statement)}


def parked_overdue(tx: Tx, *, grace_s: float) -> dict[str, int]:
    """Count, by profile, the parked workers that are past their TTL by more than `grace_s`.

    Workers that an org's floor keeps are not overdue.
    """
    statement = (
        select(W.c.org, W.c.profile, func.count().label("count"), O.c.hot_idle_floor, O.c.parked)
        .join(O, O.c.id == W.c.org)
        .where(W.c.state == State.HOT_IDLE, W.c.hot_idle_until <= plus(now(), -grace_s))
        .group_by(W.c.org, W.c.profile, O.c.hot_idle_floor, O.c.parked)
        .order_by(W.c.org, W.c.profile)
    )
    found: dict[str, int] = {}
    spare: dict[str, int] = {}
    for row in tx.execute(statement):
        count = int(row._mapping["count"])
        if row.hot_idle_floor:
            left = spare.setdefault(row.org, max(0, row.parked - row.hot_idle_floor))
            count = min(count, left)
            spare[row.org] = left - count
        found[row.profile] = found.get(row.profile, 0) + count
    return found


def idle_longer_than(tx: Tx, age_s: float) -> dict[str, int]:
    """Count, by profile, the idle workers that have been ready for at least `age_s` seconds."""
    statement = select(W.c.profile, func.count().label("count"))
    statement = statement.where(W.c.state == State.IDLE, W.c.ready_at <= plus(now(), -age_s))
    return {r.profile: int(r._mapping["count"]) for r in tx.execute(statement.group_by(W.c.profile))}


def fullest_orgs(tx: Tx, *, limit: int) -> list[tuple[str, int, int]]:
    """Return org, live claims and cap: orgs nearest to their cap first, then those with the most
    claims.
    """
    held = (
        select(C.c.org, func.count().label("held")).where(C.c.ended_at.is_(None)).group_by(C.c.org).subquery()
    )
    share = case((O.c.cap > 0, cast(held.c.held, Float) / O.c.cap), else_=0.0)
    statement = (
        select(O.c.id, held.c.held, O.c.cap)
        .join(held, held.c.org == O.c.id)
        .order_by(share.desc(), held.c.held.desc(), O.c.id)
        .limit(limit)
    )
    return [(r.id, int(r.held), r.cap) for r in tx.execute(statement)]


def count_orgs(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(O)).scalar_one())
