"""The configuration: `warmpool.toml` with `WARMPOOL_*` over it, checked line by line, then frozen as `Settings`.

`parsing` is the pure core (text and environment in, settings and findings out), generic over the settings classes:
a new field in `pool.settings` needs nothing here. `reading` finds and reads the file; `effective` says what empty
settings come to.
"""

from __future__ import annotations

from pool.config.effective import (
    broker_url,
    data_dir,
    database_url,
    has_master_key,
    keyring,
    made_data_dir,
    master_key,
)
from pool.config.parsing import Report
from pool.config.reading import check, examine, load, source_name

__all__ = [
    "Report",
    "broker_url",
    "check",
    "data_dir",
    "database_url",
    "examine",
    "has_master_key",
    "keyring",
    "load",
    "made_data_dir",
    "master_key",
    "source_name",
]
