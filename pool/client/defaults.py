"""What a pool takes from its environment: the broker's URL, and the org of the key."""

from __future__ import annotations

import os

from pool.client.credentials import KeySource
from pool.core.errors import InvalidInput
from pool.core.names import ENV_BROKER_URL, ENV_ORG_KEY, ENV_ORG_KEY_FILE


def broker_url(given: str | None) -> str:
    """Return the URL that was passed, else that of the environment."""
    url = given or os.environ.get(ENV_BROKER_URL)
    if not url:
        raise InvalidInput("url", f"is missing: pass the broker's URL, or set {ENV_BROKER_URL}")
    return url


def org(given: str | None, source: KeySource | None) -> str:
    """Return the org that was passed, else the org of the key."""
    if given is not None:
        return given
    if source is None:
        raise InvalidInput(
            "org", f"is missing: pass it, or the key of an org ({ENV_ORG_KEY}, {ENV_ORG_KEY_FILE})"
        )
    return source().org
