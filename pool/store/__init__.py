"""The durable table of the pool: the only room that knows SQL. A file a table; every write is fenced."""

from pool.store.engine import (
    Store,
    Tx,
    connect,
    lock_reconcile,
    now,
    ping,
    true_now,
)

__all__ = [
    "Store",
    "Tx",
    "connect",
    "lock_reconcile",
    "now",
    "ping",
    "true_now",
]
