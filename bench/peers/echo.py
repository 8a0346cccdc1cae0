"""`python -m bench.peers.echo REDIS QUEUE [POSTGRES]`: answer every message on its reply list,
after one durable commit if a database is given. The least that any answer over Redis can cost.
"""

from __future__ import annotations

import sys
from typing import Any

import psycopg
import redis

TABLE = "CREATE TABLE IF NOT EXISTS echoes (id bigserial PRIMARY KEY, said text NOT NULL)"


def main(url: str, queue: str, database: str = "") -> None:
    client = redis.Redis.from_url(url, socket_timeout=30)
    connection = psycopg.connect(database, autocommit=True) if database else None
    if connection:
        connection.execute(TABLE)
    while True:
        popped: Any = client.brpop([queue], timeout=5)
        if popped:
            if connection:
                connection.execute(
                    "INSERT INTO echoes (said) VALUES (%s)", (popped[1].decode(),), prepare=True
                )
            client.rpush(popped[1], b"1")


if __name__ == "__main__":
    main(*sys.argv[1:])
