"""Access to the database.

The only room that contains SQL, with one file per table. Every write is fenced.
"""

from pool.store.engine import (
    Store,
    Tx,
    connect,
    lock_reconcile,
    most_connections,
    now,
    ping,
    true_now,
)

__all__ = [
    "Store",
    "Tx",
    "connect",
    "lock_reconcile",
    "most_connections",
    "now",
    "ping",
    "true_now",
]
