"""Number of examples of a property test."""

from __future__ import annotations

import os

# `make check` sets it; `make test` and CI do not.
QUICK = os.environ.get("WARMPOOL_TEST_QUICK") == "1"


def examples(count: int) -> int:
    """Return this number, or a tenth of it in a quick run."""
    return max(1, count // 10) if QUICK else count
