"""What one profile needs and has, read in one statement. A worker that becomes ready meanwhile is counted
once: as a slot before, as warm afterwards. Promises 25 and 44."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import text

from pool.core.ids import ProfileName, RequestPk, WorkerId
from pool.store.engine import Tx
from pool.store.sql import AHEAD_S, PG_NOW


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedSupply:
    """Eligible waiters that a new worker could serve, and the workers that are or will be warm."""

    waiters: int
    idle: Sequence[WorkerId]
    just_ready: frozenset[WorkerId]
    young: frozenset[WorkerId]
    waiting_for_a_node: frozenset[WorkerId]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyAges:
    """The longest ages that count, in seconds: of a worker that may be newer than the view of the pods,
    of a slot, and of a slot whose pod no node can take."""

    just_ready_s: float
    young_s: float
    node_wait_s: float


def count(tx: Tx, profile: ProfileName, profiles: Collection[str], ages: SupplyAges) -> CountedSupply:
    """Return the supply of one profile. Waiters of a capped org count up to the room it has left, over
    all `profiles`."""
    row = tx.execute(_SUPPLY, {"profile": profile, "profiles": list(profiles), **asdict(ages)}).one()
    return CountedSupply(
        waiters=row.waiters,
        idle=row.idle,
        just_ready=frozenset(row.just_ready),
        young=frozenset(row.young),
        waiting_for_a_node=frozenset(row.waiting_for_a_node),
    )


def fresh_misses(
    tx: Tx, profile: ProfileName, profiles: Collection[str], *, fresh_s: float, most: int
) -> list[RequestPk]:
    """Return up to `most` misses that no slot was made for yet, oldest first, and lock them: they are
    consumed with the slots. An org's misses count up to the room it has left, over all `profiles`."""
    given = {"profile": profile, "profiles": list(profiles), "fresh_s": fresh_s, "most": most}
    return [RequestPk(pk) for pk in tx.execute(_FRESH_MISSES, given).scalars()]


# Requests for a profile that can get new workers: it is configured, and its breaker is closed.
_CAN_GROW = """q.profile = ANY (:profiles)
        AND NOT EXISTS (SELECT 1 FROM breakers b WHERE b.profile = q.profile AND b.open_until > at.now)"""

# Of a capped org only as many waiters count, oldest first over all profiles, as it has room for.
_SUPPLY = text(f"""
WITH at AS MATERIALIZED (SELECT {PG_NOW} AS now),
  capped AS (
    SELECT q.profile, o.cap - o.in_use AS room,
        row_number() OVER (PARTITION BY q.org ORDER BY q.created_at, q.pk) AS place
      FROM at, orgs o JOIN requests q ON q.org = o.id
      WHERE o.cap > 0 AND q.state = 'waiting' AND q.deadline_at > at.now AND {_CAN_GROW})
SELECT
  (SELECT count(*) FROM at, requests q JOIN orgs o ON o.id = q.org
    WHERE q.profile = :profile AND q.state = 'waiting' AND q.deadline_at > at.now AND o.cap = 0)
  + (SELECT count(*) FROM capped c WHERE c.profile = :profile AND c.place <= c.room) AS waiters,
  ARRAY(SELECT w.id FROM workers w WHERE w.profile = :profile AND w.state = 'idle') AS idle,
  ARRAY(SELECT w.id FROM at, workers w WHERE w.profile = :profile AND w.state = 'idle'
    AND w.ready_at > at.now - make_interval(secs => :just_ready_s)
    AND w.ready_at <= at.now + make_interval(secs => {AHEAD_S})) AS just_ready,
  ARRAY(SELECT w.id FROM at, workers w WHERE w.profile = :profile AND w.state = 'spawning'
    AND w.state_since > at.now - make_interval(secs => :young_s)) AS young,
  ARRAY(SELECT w.id FROM at, workers w WHERE w.profile = :profile AND w.state = 'spawning'
    AND w.state_since > at.now - make_interval(secs => :node_wait_s)) AS waiting_for_a_node
""")

# A consumed miss counts as a slot that is being started for its org until it is stale or granted.
_FRESH_MISSES = text(f"""
WITH at AS MATERIALIZED (SELECT {PG_NOW} AS now),
  fresh AS (
    SELECT q.pk, q.org, q.profile, q.missed_at,
        row_number() OVER (PARTITION BY q.org ORDER BY q.missed_at, q.pk) AS place
      FROM at, requests q
      WHERE {_CAN_GROW} AND q.missed_at IS NOT NULL AND q.miss_consumed_at IS NULL
        AND q.missed_at > at.now - make_interval(secs => :fresh_s)
        AND q.missed_at <= at.now + make_interval(secs => {AHEAD_S})),
  room AS (
    SELECT o.id, o.cap - o.in_use
        - (SELECT count(*) FROM requests q WHERE q.org = o.id AND q.state = 'waiting' AND q.deadline_at > at.now
            AND {_CAN_GROW})
        - (SELECT count(*) FROM requests q WHERE q.org = o.id AND q.state = 'refused'
            AND q.miss_consumed_at > at.now - make_interval(secs => :fresh_s)
            AND q.miss_consumed_at <= at.now + make_interval(secs => {AHEAD_S})) AS left
      FROM at, orgs o WHERE o.cap > 0 AND o.id IN (SELECT f.org FROM fresh f))
SELECT q.pk FROM requests q JOIN fresh f ON f.pk = q.pk LEFT JOIN room r ON r.id = f.org
  WHERE f.profile = :profile AND q.miss_consumed_at IS NULL AND (r.id IS NULL OR f.place <= r.left)
  ORDER BY f.missed_at, f.pk LIMIT :most
  FOR UPDATE OF q SKIP LOCKED
""")
