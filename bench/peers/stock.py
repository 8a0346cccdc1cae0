"""A stock Celery app with the same job: a worker for each call, with SQLAlchemy Core, in one statement
and one commit. No request, no journal, no caps and no waiting: it does less than the pool, as in a
first simple version.

`celery -A bench.peers.stock worker -P threads -c 8 -Q stock`, with BENCH_REDIS and BENCH_DATABASE
in the environment.
"""

from __future__ import annotations

import os
from functools import cache

from celery import Celery
from sqlalchemy import Engine, create_engine, text

TABLE = """CREATE TABLE IF NOT EXISTS stock (id text PRIMARY KEY, profile text NOT NULL, state text NOT NULL, ready_at timestamptz NOT NULL,
  endpoint text, org text);
CREATE INDEX IF NOT EXISTS stock_in_claim_order ON stock (profile, ready_at, id) WHERE state = 'idle';"""
REFILL = """INSERT INTO stock SELECT 'w-' || gen_random_uuid(), 'default', 'idle', now(), 'http://10.0.0.1:8080'
  FROM generate_series(1, %s) n"""
CLAIM = """UPDATE stock SET state = 'hot', org = :org WHERE id = (SELECT id FROM stock WHERE state = 'idle' AND profile = 'default'
  ORDER BY ready_at, id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, endpoint"""

_URL = os.environ.get("BENCH_REDIS", "redis://")
app = Celery("stock", broker=_URL, backend=_URL, set_as_current=False)
app.conf.update(task_default_queue="stock", task_acks_late=True, broker_connection_retry_on_startup=True)


@cache
def engine() -> Engine:
    return create_engine(
        os.environ["BENCH_DATABASE"].replace("postgresql://", "postgresql+psycopg://"), pool_size=16
    )


@app.task(name="stock.nothing")
def nothing() -> None:
    """The least that a Celery task can do."""


@app.task(name="stock.claim")
def claim(org: str) -> dict[str, str]:
    """A worker."""
    with engine().begin() as tx:
        row = tx.execute(text(CLAIM), {"org": org}).one()
    return {"worker_id": row.id, "endpoint": row.endpoint}
