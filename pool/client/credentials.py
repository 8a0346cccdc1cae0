"""The client's credentials: the key of its org, and the signatures made with it.

The key is an argument, or the value of WARMPOOL_ORG_KEY, or in the file named by
WARMPOOL_ORG_KEY_FILE. The file is read again periodically, so that a changed key (a mounted Secret)
needs no restart. Signatures expire by the broker's clock, which the client reads. The clock of this
host does not matter.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from pool.client.messages import Message
from pool.core.clock import Clock
from pool.core.errors import InvalidInput, PoolError
from pool.core.ids import RandomIds
from pool.core.names import ENV_ORG_KEY, ENV_ORG_KEY_FILE
from pool.core.signing import HEADER, VALID_S, Asked, OrgKey, sign

log = logging.getLogger("warmpool.client")

# Interval at which the broker's time and the key file are read.
LEARN_EVERY_S = 60.0

KeySource = Callable[[], OrgKey]


def key_source(given: str | None) -> KeySource | None:
    """Return where the key comes from, or None if requests are not signed."""
    text = given or os.environ.get(ENV_ORG_KEY)
    if text:
        key = OrgKey.parse(text)
        return lambda: key
    if path := os.environ.get(ENV_ORG_KEY_FILE):
        return lambda: _kept_in(Path(path))
    return None


class Signer:
    """Sign each send separately: for the pool, a message that is sent again is a new message."""

    def __init__(self, source: KeySource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._ids = RandomIds()
        self._key = source()
        self._learnt_at: float | None = None
        self._ahead_s = 0.0

    def is_due(self) -> bool:
        """Return whether the broker's time must be read again."""
        return self._learnt_at is None or self._clock.monotonic() - self._learnt_at > LEARN_EVERY_S

    def learn(self, broker_s: float) -> None:
        """Record the current time of the broker's clock, and read the key again."""
        self._learnt_at = self._clock.monotonic()
        self._ahead_s = broker_s - self._learnt_at
        try:
            self._key = self._source()
        except PoolError as exc:
            log.warning("org_key_not_read error=%s", exc)

    def headers(self, message: Message) -> dict[str, str]:
        """Return the signature header of one send."""
        asked = Asked(
            task=message.task,
            task_id=message.task_id,
            address=message.reply_to,
            args=(),
            kwargs=message.kwargs,
        )
        expires_s = int(self._clock.monotonic() + self._ahead_s) + VALID_S
        return {HEADER: sign(self._key, asked, expires_s=expires_s, nonce=self._ids.token())}


def _kept_in(path: Path) -> OrgKey:
    try:
        return OrgKey.parse(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as exc:
        raise InvalidInput(ENV_ORG_KEY_FILE, f"names a file that cannot be read: {exc}") from exc
