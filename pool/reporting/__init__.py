"""What the pool looks like, as values: the same for the CLI, its JSON and the board. Reads only, bounded, never for deciding."""

from pool.reporting.explaining import request as explain_request
from pool.reporting.explaining import worker as explain_worker
from pool.reporting.shapes import deed, entry
from pool.reporting.status import status
from pool.reporting.tables import KINDS, table
from pool.reporting.worrying import worries

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
