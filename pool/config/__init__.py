"""Load the configuration: `warmpool.toml`, overridden by `WARMPOOL_*` variables, checked, then
frozen as `Settings`.

`parsing` is the pure part: it turns a text and an environment into settings and findings. It is
generic over the settings classes, so a new field in `pool.core.settings` needs no change here.
`reading` finds and reads the file. `effective` resolves settings that are empty.
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
from pool.config.parsing import ConfigReport
from pool.config.reading import check, examine, load, source_name

__all__ = [
    "ConfigReport",
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
