"""The cost of a claim on Postgres: with 1,000 and with 100,000 idle workers, compared with a bare
`UPDATE … RETURNING` that keeps no record, which is the least that any durable claim can cost.

One call is one commit on a server that syncs to disk. Outside the timed part the claim is released
and its worker retired as in the pool, and between rounds as many new workers become idle: each
claim meets the dead index entries of earlier claims at the end of the index where it starts, as in
a pool in use.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from dataclasses import replace
from enum import Enum, auto
from typing import Protocol

import psycopg
from sqlalchemy import event

from bench.measuring import BenchReport, Effort, Subject, count, interleaved
from bench.populating import PROFILE, askers, populated, refill
from pool.core.contract import Acquire, Granted, Release
from pool.core.ids import ClaimId, RandomIds, WorkerId, new_task_id
from pool.core.records import ReplyTo
from pool.core.states import Condition, Source
from pool.lifecycle import claiming, retiring
from pool.lifecycle.claiming import AcquireCall
from pool.lifecycle.deps import Deps
from pool.store import connect
from pool.store.rule_connection import RuleConnection
from tests.support.postgres_server import PostgresServer
from tests.support.world import World

FEW, MANY = 1_000, 100_000
FULL = Effort(rounds=12, calls=30, warm_up=40)
QUICK = Effort(rounds=5, calls=20, warm_up=40)


class Commits(Enum):
    """Return whether a commit waits for the disk."""

    SYNCED = auto()
    UNSYNCED = auto()


class Claiming(Subject, Protocol):
    """A subject that claims over one connection."""

    def connection(self) -> psycopg.Connection: ...

    def close(self) -> None: ...


_BARE_TABLE = """CREATE TABLE bare (id text PRIMARY KEY, profile text NOT NULL, state text NOT NULL, ready_at timestamptz NOT NULL,
  endpoint text, org text);
INSERT INTO bare SELECT id, profile, state, ready_at, endpoint FROM workers WHERE state = 'idle';
CREATE INDEX bare_in_claim_order ON bare (profile, ready_at, id) WHERE state = 'idle';"""
_BARE_CLAIM = """UPDATE bare SET state = 'hot', org = %s WHERE id = (SELECT id FROM bare WHERE state = 'idle' AND profile = %s
  ORDER BY ready_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, endpoint"""
_BARE_REFILL = """INSERT INTO bare SELECT 'w-' || substr(md5(random()::text || n), 1, 20), %s, 'idle', now(), 'http://10.0.0.1:8080'
  FROM generate_series(1, %s) n"""


class PoolClaim:
    """A batch of one, as an acquire worker sends it."""

    def __init__(self, url: str, *, commits: Commits = Commits.SYNCED) -> None:
        world = World(connect(url, connections=1))
        self._broker = world.broker
        self.deps: Deps = replace(world.deps, ids=RandomIds())
        self._line = RuleConnection(world.store)
        self._orgs = itertools.cycle(askers())
        self._taken: list[tuple[ClaimId, WorkerId]] = []
        self._spent = 0
        if commits is Commits.UNSYNCED:
            event.listen(world.store.engine, "connect", _unsynced)

    def once(self) -> None:
        (answer,), _ = claiming.serve(self.deps, [self._ask()], self._line)
        if not isinstance(answer, Granted) or answer.source is not Source.WARM:
            raise TypeError(f"not what was to be measured: {answer}")
        self._taken.append((ClaimId(answer.claim_id), WorkerId(answer.worker_id)))

    def after(self) -> None:
        """With a TTL of zero the worker is not parked but drains; the delete of its pod succeeds at
        once.
        """
        for claim_id, worker_id in self._taken:
            claiming.release(self.deps, Release(claim_id=claim_id, condition=Condition.CLEAN))
            retiring.retire(self.deps, worker_id)
        self._spent += len(self._taken)
        self._taken.clear()
        self._broker.sent.clear()

    def between(self) -> None:
        refill(self.deps.store, self._spent)
        self._spent = 0

    def connection(self) -> psycopg.Connection:
        found = self._line._open()
        assert isinstance(found, psycopg.Connection)
        return found

    def close(self) -> None:
        self._line.close()
        self.deps.store.close()

    def _ask(self) -> AcquireCall:
        task_id = new_task_id()
        asked = Acquire(
            org=next(self._orgs), profile=PROFILE, request_id=task_id, lease_s=30, ttl_s=0, wait_s=0
        )
        return AcquireCall(asked=asked, reply=ReplyTo(task_id=task_id, address="replies:bench"))


class BareClaim:
    """No request, no claim, no journal, no trigger: the lower bound."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(_BARE_TABLE)
        self._connection.execute("VACUUM ANALYZE bare")
        self._orgs = itertools.cycle(askers())
        self._taken: list[str] = []
        self._spent = 0

    def once(self) -> None:
        row = self._connection.execute(_BARE_CLAIM, (next(self._orgs), PROFILE), prepare=True).fetchone()
        if row is None:
            raise RuntimeError("no idle row is left")
        self._taken.append(row[0])

    def after(self) -> None:
        self._connection.execute("UPDATE bare SET state = 'retired' WHERE id = ANY(%s)", (self._taken,))
        self._spent += len(self._taken)
        self._taken.clear()

    def between(self) -> None:
        self._connection.execute(_BARE_REFILL, (PROFILE, self._spent))
        self._spent = 0

    def connection(self) -> psycopg.Connection:
        return self._connection

    def close(self) -> None:
        self._connection.close()


def run(effort: Effort) -> BenchReport:
    """Populate, measure, count."""
    server = PostgresServer(fsync=True).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.destroy)
        few, many = populated(server, "few", FEW), populated(server, "many", MANY)
        subjects: dict[str, Claiming] = {
            "claim, 1,000": PoolClaim(few),
            "claim, 1,000 (again)": PoolClaim(few),
            "claim, 100,000": PoolClaim(many),
            "claim unsynced, 1,000": PoolClaim(few, commits=Commits.UNSYNCED),
            "claim unsynced, 100,000": PoolClaim(many, commits=Commits.UNSYNCED),
            "bare update, 100,000": BareClaim(many),
        }
        for subject in subjects.values():
            stack.callback(subject.close)
        measured = interleaved(subjects, effort)
        trips = {name: round_trips(subject) for name, subject in subjects.items()}
    claim, bare = "claim, 100,000", "bare update, 100,000"
    figures = (
        measured.ratio("claim: 100,000 to 1,000", claim, "claim, 1,000", most=1.2),
        measured.ratio("the same without the disk", "claim unsynced, 100,000", "claim unsynced, 1,000"),
        measured.ratio("1,000 to itself (the noise)", "claim, 1,000 (again)", "claim, 1,000"),
        measured.ratio("claim to bare update", claim, bare),
        count("round trips: claim to bare update", trips[claim], trips[bare], most=1.0),
    )
    return BenchReport(bench="claim-cost", figures=figures, measured=measured)


def round_trips(subject: Claiming) -> int:
    """Return how many round trips one call makes, read from the wire."""
    with tempfile.TemporaryFile() as trace:
        connection = subject.connection().pgconn
        connection.trace(trace.fileno())
        subject.once()
        connection.untrace()
        trace.seek(0)
        # The server sends ReadyForQuery once per round trip.
        asked = sum(b"ReadyForQuery" in line for line in trace)
    subject.after()
    return asked


def _unsynced(connection: psycopg.Connection, _record: object) -> None:
    connection.execute("SET synchronous_commit = off")
    connection.commit()
