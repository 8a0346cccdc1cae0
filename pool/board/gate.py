"""Who may look, who may act. One password, a name that goes into the journal, a signed cookie, a token in every form.

The cookie's key is derived from the password: a new password ends all sessions, a restart or a second replica ends none.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections import deque
from dataclasses import dataclass, field

from pool.clock import Clock

COOKIE = "warmpool_board"
SESSION_S = 12 * 3600
_FAILURES_A_MINUTE = 10
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,63}$")


@dataclass(slots=True)
class Gate:
    """One board's password, or none: then nobody can sign in."""

    password: str = field(repr=False)
    clock: Clock
    # Whether those who have not signed in may look.
    open_to_all: bool
    _failures: deque[float] = field(default_factory=deque)

    @property
    def has_password(self) -> bool:
        return bool(self.password)

    def sign_in(self, name: str, password: str, *, now_s: int) -> str | None:
        """A cookie's value, or None: wrong, or too many wrong ones lately."""
        if not self.has_password or self.is_closed() or not _NAME.match(name):
            return None
        if not _same(password, self.password):
            self._failures.append(self.clock.monotonic())
            return None
        told = base64.urlsafe_b64encode(f"{now_s + SESSION_S}|{name}".encode()).decode()
        return f"{told}.{self._signed('session', told)}"

    def is_closed(self) -> bool:
        """Whether there were so many wrong passwords in the last minute that none is tried any more."""
        now = self.clock.monotonic()
        while self._failures and now - self._failures[0] > 60:
            self._failures.popleft()
        return len(self._failures) >= _FAILURES_A_MINUTE

    def who(self, cookie: str, *, now_s: int) -> str | None:
        """The name that signed in with this cookie, while it lasts."""
        told, _, signature = cookie.partition(".")
        if not self.has_password or not _same(signature, self._signed("session", told)):
            return None
        try:
            until, _, name = base64.urlsafe_b64decode(told).decode().partition("|")
            return name if int(until) > now_s else None
        except (binascii.Error, ValueError):
            return None

    def who_by_header(self, header: str) -> str | None:
        """The name in a Basic header, for scripts that only read."""
        kind, _, word = header.partition(" ")
        if kind.lower() != "basic" or not self.has_password or self.is_closed():
            return None
        try:
            name, _, password = base64.b64decode(word, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        if _same(password, self.password) and _NAME.match(name):
            return name
        self._failures.append(self.clock.monotonic())
        return None

    def form_token(self, cookie: str) -> str:
        """What every form of this session carries."""
        return self._signed("form", cookie)

    def is_form_token(self, token: str, cookie: str) -> bool:
        return _same(token, self.form_token(cookie))

    def _signed(self, purpose: str, text: str) -> str:
        key = hashlib.sha256(f"warmpool board {purpose} {self.password}".encode()).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(errors="replace"), b.encode(errors="replace"))
