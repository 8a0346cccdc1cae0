"""The tables. Each promise that the database can enforce is a constraint, an index or a trigger
with the promise's name; `pool.store.errors` translates a violation into an error.

Rows that every claim writes are checked by triggers (`pool.store.triggers`), because Postgres
parses CHECK constraints again for every statement.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from pool.core.states import CLAIMABLE, CLAIMED, LIVE, OVER, TERMINAL, RequestState, State
from pool.store.sql import Instant, JsonText, Prose

metadata = MetaData()


def _among(column: str, values: frozenset[State] | frozenset[RequestState]) -> str:
    return f"{column} IN ({', '.join(repr(str(v)) for v in sorted(values))})"


def _when(state: State) -> str:
    return f"state = '{state}'"


clock = Table(
    "clock",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_clock"), primary_key=True),
    Column("shift_s", Float, nullable=False, server_default=text("0")),
)

pool = Table(
    "pool",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_pool"), primary_key=True),
    Column("live", Integer, CheckConstraint("live >= 0", name="pool_counter_not_negative"), nullable=False),
    Column("paused", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("lane_open_since", Instant, nullable=False),
    Column("canary_at", Instant, nullable=False),
    Column("began_at", Instant, nullable=False),
)

orgs = Table(
    "orgs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("cap", Integer, nullable=False),
    Column("weight", Float, nullable=False),
    Column("hot_idle_floor", Integer, nullable=False),
    Column("hot_idle_cap", Integer, nullable=False),
    Column("hot_idle_ttl_s", Integer),
    Column("values", JsonText, nullable=False),
    Column("in_use", Integer, nullable=False, server_default=text("0")),
    Column("parked", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Instant, nullable=False),
    CheckConstraint("in_use >= 0 AND parked >= 0", name="org_counters_not_negative"),
    CheckConstraint(
        "cap >= 0 AND hot_idle_floor >= 0 AND hot_idle_cap >= 0 AND weight > 0", name="org_limits_sane"
    ),
)

workers = Table(
    "workers",
    metadata,
    Column("id", Text, primary_key=True),
    Column("profile", Text, nullable=False),
    Column("image", Text, nullable=False),
    Column("revision", Text, nullable=False),
    Column("cpu_millicores", Integer, nullable=False),
    Column("memory_mib", Integer, nullable=False),
    Column("grace_s", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("epoch", Integer, nullable=False, server_default=text("0")),
    Column("org", Text),
    Column("claim_id", Text),
    Column("endpoint", Text),
    Column("pod_uid", Text),
    Column("node", Text),
    Column("created_at", Instant, nullable=False),
    Column("state_since", Instant, nullable=False),
    Column("sent_at", Instant),
    Column("ready_at", Instant),
    Column("heartbeat_at", Instant),
    Column("hot_idle_since", Instant),
    Column("hot_idle_until", Instant),
    Column("parked_counted", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("leaving_since", Instant),
    Column("leaving_reason", Text),
    Column("leaving_detail", Prose),
    Column("moved_by", Prose, nullable=False),
    Column("moved_reason", Text, nullable=False),
    Column("moved_detail", Prose, nullable=False, server_default=""),
    # Unused seconds of this worker, up to its last move. When it ends they are added to
    # `idle_spent`.
    Column("starting_s", Float, nullable=False, server_default=text("0")),
    Column("warm_s", Float, nullable=False, server_default=text("0")),
    Column("parked_s", Float, nullable=False, server_default=text("0")),
    Column("overdue_s", Float, nullable=False, server_default=text("0")),
    Index("one_live_worker_a_claim", "claim_id", unique=True, postgresql_where=text("claim_id IS NOT NULL")),
)  # fmt: skip

claims = Table(
    "claims",
    metadata,
    Column("id", Text, primary_key=True),
    Column("worker_id", Text, nullable=False),
    Column("org", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("request_pk", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("source", Text, nullable=False),
    Column("lease_s", Integer, nullable=False),
    Column("ttl_s", Integer),
    Column("created_at", Instant, nullable=False),
    Column("hot_at", Instant),
    Column("lease_expires_at", Instant),
    Column("ended_at", Instant),
    Column("ended_why", Text),
    Column("counted", Boolean(create_constraint=False), nullable=False),
    Column("abandoned", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("release_asked_at", Instant),
    Column("release_condition", Text),
)

requests = Table(
    "requests",
    metadata,
    Column("pk", Text, primary_key=True),
    Column("org", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("profile", Text, nullable=False),
    Column("lease_s", Integer, nullable=False),
    Column("ttl_s", Integer),
    Column("wait_s", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("detail", Prose),
    Column("retry_after_s", Float),
    Column("claim_id", Text),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("created_at", Instant, nullable=False),
    Column("deadline_at", Instant, nullable=False),
    Column("decided_at", Instant),
    Column("replied_at", Instant),
    Column("replies", JsonText, nullable=False),
    Column("missed_at", Instant),
    Column("miss_consumed_at", Instant),
    # How often a worker went to another org at the pool's cap while this org held none.
    Column("passed", Integer, nullable=False, server_default=text("0")),
    UniqueConstraint("org", "request_id", name="one_request_per_org_and_id"),
)

passes = Table(
    "passes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("last_attempt_at", Instant),
    Column("last_success_at", Instant),
    Column("last_outcome", Text),
    Column("last_detail", Prose),
    Column("last_duration_s", Float),
    Column("last_actions", Integer),
    Column("holder", Text),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("paused", Boolean(create_constraint=False), nullable=False, server_default=false()),
    Column("paused_by", Text),
)

suspects = Table(
    "suspects",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("first_seen_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    Column("runs", Integer, nullable=False),
    Column("detail", Prose, nullable=False),
)

breakers = Table(
    "breakers",
    metadata,
    Column("profile", Text, primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("open_until", Instant),
    Column("why", Prose, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("profile", Text, primary_key=True),
    Column("revision", Text, nullable=False),
    Column("image", Text, nullable=False),
    Column("since", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("challenged_at", Instant),
    Column("challenge_seen_at", Instant),
    Column("proven_at", Instant),
)

revisions_seen = Table(
    "revisions_seen",
    metadata,
    Column("profile", Text, primary_key=True),
    Column("revision", Text, primary_key=True),
    Column("first_seen_at", Instant, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("worker_id", Text, nullable=False),
    Column("from_state", Text),
    Column("to_state", Text, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("org", Text),
    Column("claim_id", Text),
    Column("who", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("detail", Prose, nullable=False),
)

# Resources that ended workers have used without a claim. The values only grow.
idle_spent = Table(
    "idle_spent",
    metadata,
    Column("profile", Text, primary_key=True),
    Column("reason", Text, primary_key=True),
    Column("vcpu_s", Float, nullable=False),
    Column("gib_s", Float, nullable=False),
)

# Counts of the last run of each pass.
sightings = Table(
    "sightings",
    metadata,
    Column("pass", Text, primary_key=True),
    Column("what", Text, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("at", Instant, nullable=False),
)

# Warm targets that operators have set.
targets = Table(
    "targets",
    metadata,
    Column("profile", Text, primary_key=True),
    Column("warm_target", Integer, nullable=False),
    Column("set_by", Text, nullable=False),
    Column("set_at", Instant, nullable=False),
    CheckConstraint("warm_target >= 0", name="target_not_negative"),
)

# Key versions of the orgs whose key was changed; all others have the first version.
org_keys = Table(
    "org_keys",
    metadata,
    Column("org", Text, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("older_until", Instant),
    Column("changed_at", Instant, nullable=False),
)

# The kind of audit entry that any sender can cause, in any number.
REQUEST_REFUSED = "request_refused"
# Audit entries: changes that are not moves of a worker, by operators and by sweeps of orphaned pods,
# and refused requests.
deeds = Table(
    "deeds",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("who", Prose, nullable=False),
    Column("what", Text, nullable=False),
    Column("subject", Prose, nullable=False),
    Column("why", Prose, nullable=False),
)


def _partial(name: str, *columns: str, table: Table, where: str, unique: bool = False) -> Index:
    return Index(name, *(table.c[c] for c in columns), unique=unique, postgresql_where=text(where))


# The exact orders in which rows are selected, so that the cost does not depend on the number of
# rows.
_partial("idle_in_claim_order", "profile", "ready_at", "id", table=workers, where=_when(State.IDLE))
_partial(
    "parked_in_claim_order",
    "org",
    "profile",
    "hot_idle_since",
    "id",
    table=workers,
    where=_when(State.HOT_IDLE),
)
_partial("parked_by_end", "hot_idle_until", "id", table=workers, where=_when(State.HOT_IDLE))
_partial("live_by_state", "state", "state_since", "id", table=workers, where=_among("state", LIVE))
_partial(
    "leaving_busy", "id", table=workers, where=f"leaving_since IS NOT NULL AND ({_among('state', CLAIMED)})"
)
# Only columns that never change in the life of a row: a scan reads each row once, whatever moves in
# the meantime.
_partial("live_by_build", "profile", "revision", "id", table=workers, where=_among("state", LIVE))
_partial("claimable_by_age", "created_at", "id", table=workers, where=_among("state", CLAIMABLE))
_partial("ended_by_age", "state_since", "id", table=workers, where=_among("state", TERMINAL))
_partial("one_live_claim_a_worker", "worker_id", table=claims, where="ended_at IS NULL", unique=True)
_partial("live_claims_by_lease", "lease_expires_at", "id", table=claims, where="ended_at IS NULL")
_partial("live_claims_by_org", "org", "counted", table=claims, where="ended_at IS NULL")
_partial("ended_claims_by_worker", "worker_id", table=claims, where="ended_at IS NOT NULL")
_partial("ended_claims_by_age", "ended_at", "id", table=claims, where="ended_at IS NOT NULL")
_partial("releases_unfinished", "release_asked_at", table=claims,
         where="ended_at IS NULL AND release_asked_at IS NOT NULL")  # fmt: skip
_partial("waiting_in_order", "profile", "org", "created_at", "pk", table=requests, where="state = 'waiting'")
_partial("waiting_by_deadline", "deadline_at", table=requests, where="state = 'waiting'")
_partial("waiting_by_org", "org", "profile", table=requests, where="state = 'waiting'")
_partial(
    "decided_unreplied", "decided_at", table=requests, where="decided_at IS NOT NULL AND replied_at IS NULL"
)
_partial("misses_unconsumed", "profile", "missed_at", table=requests,
         where="missed_at IS NOT NULL AND miss_consumed_at IS NULL")  # fmt: skip
_partial("misses_consumed", "org", "miss_consumed_at", table=requests, where="miss_consumed_at IS NOT NULL")
_partial("orgs_with_a_cap", "id", table=orgs, where="cap > 0")
_partial("orgs_that_count_parking", "id", table=orgs, where="hot_idle_floor > 0 OR hot_idle_cap > 0")
_partial("requests_by_age", "decided_at", "pk", table=requests, where=_among("state", OVER))
Index("journal_by_worker", journal.c.worker_id, journal.c.id)
Index("journal_by_age", journal.c.at)
Index("deeds_by_subject", deeds.c.subject, deeds.c.id)
Index("deeds_by_age", deeds.c.at)
_partial("deeds_of_our_own", "id", table=deeds, where=f"what <> '{REQUEST_REFUSED}'")
