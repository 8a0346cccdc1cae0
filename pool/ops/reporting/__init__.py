"""Reports about the pool as values, shared by the CLI, its JSON and the board. They only read, and their size
is bounded."""

from pool.ops.reporting.explaining import request as explain_request
from pool.ops.reporting.explaining import worker as explain_worker
from pool.ops.reporting.problems import worries
from pool.ops.reporting.shapes import deed, entry
from pool.ops.reporting.status import status
from pool.ops.reporting.tables import KINDS, table

__all__ = [
    "KINDS",
    "deed",
    "entry",
    "explain_request",
    "explain_worker",
    "status",
    "table",
    "worries",
]
