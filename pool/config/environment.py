"""Tell which `WARMPOOL_*` variables are settings, which have another purpose, and which are
mistakes. Pure.
"""

from __future__ import annotations

import re

from pool.core.names import (
    ENV_NOT_SETTINGS,
    ENV_NOT_SETTINGS_PREFIXES,
    ENV_ORGS_AUTO_CREATE,
    ENV_PREFIX,
)

# Kubernetes adds these to every pod for a Service whose name begins with "warmpool".
_SERVICE_LINKS = re.compile(
    rf"{ENV_PREFIX}(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


def variable(field: str, section: str = "pool") -> str:
    """Return the variable of a setting of [pool], or of another section."""
    return ENV_PREFIX + ("" if section == "pool" else f"{section.upper()}_") + field.upper()


def is_mistake(name: str, settings: frozenset[str]) -> bool:
    """Return whether a variable looks like a setting but is none."""
    if not name.startswith(ENV_PREFIX) or name in settings or name == ENV_ORGS_AUTO_CREATE:
        return False
    if name in ENV_NOT_SETTINGS or name.startswith(ENV_NOT_SETTINGS_PREFIXES):
        return False
    return not _SERVICE_LINKS.fullmatch(name)
