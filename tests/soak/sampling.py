"""What a running system uses: memory, threads and open files of each process, connections and
memory of the broker, connections and rows of the database, pods.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import redis
from sqlalchemy import func, select

from pool.store import schema
from tests.support.local_ground import LocalGround
from tests.support.system import System

TABLES = (schema.workers, schema.claims, schema.requests, schema.journal, schema.suspects)


def sample(system: System) -> dict[str, float]:
    """Return all figures. The name begins with the unit."""
    found: dict[str, float] = {}
    for name, part in system.parts.items():
        process = Path("/proc") / str(part.pid)
        found[f"MiB {name}"] = _resident_mib(process)
        found[f"threads {name}"] = len(list((process / "task").iterdir()))
        found[f"files {name}"] = len(list((process / "fd").iterdir()))
    with redis.Redis.from_url(system.redis.url) as broker:
        found["connections broker"] = float(broker.info("clients")["connected_clients"])
        found["MiB broker"] = float(broker.info("memory")["used_memory"]) / 2**20
        found["keys broker"] = float(broker.dbsize())
    with system.store.read() as tx:
        for table in TABLES:
            found[f"rows {table.name}"] = tx.execute(select(func.count()).select_from(table)).scalar_one()
    with psycopg.connect(system.database_url) as connection:
        [sessions] = connection.execute("SELECT count(*) FROM pg_stat_activity").fetchall()
        found["connections database"] = float(sessions[0])
    found["pods"] = len(LocalGround(system.folder / "local").driver().list().pods)
    return found


def _resident_mib(process: Path) -> float:
    [line] = [line for line in (process / "status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024
