"""Which `WARMPOOL_*` variables are settings, which belong to others, and which are mistakes. Pure."""

from __future__ import annotations

import re

PREFIX = "WARMPOOL_"
CONFIG = "WARMPOOL_CONFIG"
ORGS_AUTO_CREATE = "WARMPOOL_ORGS_AUTO_CREATE"

# What the pool gives its workers and its own processes, and what tests use: not settings, and no mistakes either.
_OTHERS = re.compile(
    r"WARMPOOL_(?:CONFIG|WORKER|UID|STATUS_FILE|KEY_FILE|GRACE_S|PORT|ENDPOINT|TOKEN|EPOCH|HOST|PROFILE"
    r"|ORG_KEY|ORG_KEY_FILE|CLAIM.*|RUN_.*|TEST_.*)",
    re.DOTALL,
)
# What Kubernetes puts into every pod for a Service whose name begins with "warmpool".
_SERVICE_LINKS = re.compile(
    r"WARMPOOL_(?:[A-Z0-9_]+_)?"
    r"(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)"
)


def variable(field: str, section: str = "pool") -> str:
    """The variable of a setting of the pool, or of another section."""
    return PREFIX + ("" if section == "pool" else f"{section.upper()}_") + field.upper()


def is_mistake(name: str, settings: frozenset[str]) -> bool:
    """Whether a variable looks like a setting and is none."""
    if not name.startswith(PREFIX) or name in settings or name == ORGS_AUTO_CREATE:
        return False
    return not (_OTHERS.fullmatch(name) or _SERVICE_LINKS.fullmatch(name))
