"""Databases like those of a used pool: idle workers in the order in which they became ready, busy
and parked ones, and the ended workers, claims, requests and journal of the past day. All of it
grows with the number of idle workers.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import text

from pool.core.ids import OrgId, ProfileName
from pool.core.profiles import revision
from pool.core.settings import OrgDefaults, Profile
from pool.store import Store, Tx, connect, migrations, orgs
from tests.support.postgres_server import PostgresServer

ORGS = 200
PROFILE = ProfileName("default")

# Ids are random, like the pool's: their place in an index is part of the cost.
_RANDOM = "substr(md5(random()::text || clock_timestamp()::text || {n}), 1, 20)"
_ORG = f"'org-' || ({{n}} % {ORGS})"

_SLOTS = f"""INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, created_at,
    state_since, sent_at, moved_by, moved_reason)
  SELECT 'w-' || {_RANDOM.format(n="n")}, :profile, :image, :revision, :cpu, :memory, :grace, 'spawning', t, t, t, 'bench', 'demand'
  FROM (SELECT n, now() - make_interval(secs => :over_s * (1 - n::float8 / :count)) AS t FROM generate_series(1, :count) n) s"""

_READY = """UPDATE workers w SET state = 'idle', state_since = s.t, ready_at = s.t, pod_uid = gen_random_uuid()::text,
    endpoint = 'http://10.' || (s.n / 65536) % 256 || '.' || (s.n / 256) % 256 || '.' || s.n % 256 || '\\:8080',
    node = 'node-' || s.n % 100, moved_by = 'bench', moved_reason = 'ready'
  FROM (SELECT id, created_at + interval '8 s' AS t, row_number() OVER (ORDER BY created_at, id) AS n
    FROM workers WHERE state = 'spawning' AND moved_by = 'bench') s
  WHERE w.id = s.id"""

_LIVES = f"""CREATE TEMP TABLE lives ON COMMIT DROP AS
  SELECT n, 'w-' || {_RANDOM.format(n="n")} AS w, 'c-' || {_RANDOM.format(n="n + 1")} AS c,
    'r-' || {_RANDOM.format(n="n + 2")} AS r, {_ORG.format(n="n")} AS org,
    CASE WHEN n <= :past THEN 'retired' WHEN n <= :past + :parked THEN 'hot_idle' ELSE 'hot' END AS state,
    now() - make_interval(secs => 86400 * (1 - n::float8 / (:past + :parked + :busy))) AS t
  FROM generate_series(1, :past + :parked + :busy) n"""

_LIVED = (
    """INSERT INTO workers (id, profile, image, revision, cpu_millicores, memory_mib, grace_s, state, epoch, org, claim_id,
    endpoint, pod_uid, node, created_at, state_since, sent_at, ready_at, heartbeat_at, hot_idle_since, hot_idle_until,
    moved_by, moved_reason)
  SELECT w, :profile, :image, :revision, :cpu, :memory, :grace, state, CASE state WHEN 'hot' THEN 1 ELSE 2 END, org,
    CASE state WHEN 'hot' THEN c END, 'http://10.9.9.9:8080', gen_random_uuid()::text, 'node-' || n % 100, t, t, t, t, t,
    CASE state WHEN 'hot_idle' THEN t END, CASE state WHEN 'hot_idle' THEN now() + interval '1 day' END, 'bench', 'released'
  FROM lives""",
    """INSERT INTO claims (id, worker_id, org, profile, request_pk, epoch, source, lease_s, created_at, hot_at, lease_expires_at,
    ended_at, ended_why, counted)
  SELECT c, w, org, :profile, r, 1, 'warm', 86400, t, t, now() + interval '1 day', CASE WHEN state <> 'hot' THEN t END,
    CASE WHEN state <> 'hot' THEN 'released' END, false FROM lives""",
    """INSERT INTO requests (pk, org, request_id, profile, lease_s, wait_s, state, claim_id, created_at, deadline_at, decided_at,
    replied_at, replies)
  SELECT r, org, gen_random_uuid()::text, :profile, 30, 0, CASE state WHEN 'hot' THEN 'granted' ELSE 'spent' END, c, t, t, t, t,
    '[["3f1c7d2e-7c55-4f0e-9b53-5f3ad2c9a001",""]]' FROM lives""",
    """INSERT INTO journal (at, worker_id, from_state, to_state, epoch, org, claim_id, who, reason, detail)
  SELECT t, w, f, s, e, CASE WHEN e > 0 THEN org END, CASE s WHEN 'hot' THEN c END, 'bench', 'released', ''
  FROM lives CROSS JOIN LATERAL (VALUES (1, NULL, 'spawning', 0), (2, 'spawning', 'idle', 0), (3, 'idle', 'hot', 1),
    (4, 'hot', 'hot_idle', 2), (5, 'hot_idle', 'draining', 2), (6, 'draining', 'retired', 2)) v (k, f, s, e)
  WHERE k <= CASE state WHEN 'hot' THEN 3 WHEN 'hot_idle' THEN 4 ELSE 6 END
  ORDER BY n, k""",
    "UPDATE pool SET live = live + :parked + :busy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """How many workers of which kind."""

    idle: int
    busy: int
    parked: int
    past: int


def populated(server: PostgresServer, name: str, idle: int) -> str:
    """Create a database with this many idle workers, a twentieth as many busy and parked each, and
    as many that have ended. Return its URL.
    """
    return populated_with(server, name, FleetSize(idle=idle, busy=idle // 20, parked=idle // 20, past=idle))


def populated_with(server: PostgresServer, name: str, fleet: FleetSize) -> str:
    """Create a database with these. Return its URL."""
    url = server.create_database(name)
    store = connect(url, call_timeout_s=120)
    migrations.upgrade(store)
    with store.write() as tx:
        for org in askers():
            orgs.seed(tx, org, OrgDefaults())
        _history(tx, past=fleet.past, parked=fleet.parked, busy=fleet.busy)
    refill(store, fleet.idle, over_s=3600)
    with store.read() as tx:
        tx.execute(text("VACUUM (ANALYZE)"))
        tx.execute(text("CHECKPOINT"))
    store.close()
    return url


def askers() -> list[OrgId]:
    """Create orgs without parked workers: they get warm ones."""
    return [OrgId(f"asker-{n}") for n in range(ORGS)]


def refill(store: Store, count: int, *, over_s: float = 0) -> None:
    """Create slots that become idle, without the triggers; all are ready now."""
    if not count:
        return
    with store.write() as tx:
        orgs.reserve_slots(tx, count, 0)
        tx.execute(text(_SLOTS), _shape() | {"count": count, "over_s": over_s})
        tx.execute(text(_READY))


def _history(tx: Tx, **numbers: int) -> None:
    """Rows in their final state, written without the moves before: the triggers would refuse that."""
    tx.execute(text("SET LOCAL session_replication_role = replica"))
    tx.execute(text(_LIVES), numbers)
    for statement in _LIVED:
        tx.execute(text(statement), _shape() | numbers)
    tx.execute(text("SET LOCAL session_replication_role = origin"))


def _shape() -> dict[str, object]:
    p = Profile()
    return {
        "profile": PROFILE,
        "revision": revision(p),
        "image": p.image,
        "cpu": p.cpu_millicores,
        "memory": p.memory_mib,
        "grace": p.grace_s,
    }
