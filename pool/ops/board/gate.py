"""The board's password: sessions as signed cookies, a token in every form, and a rate limit for
wrong passwords.

The key for cookies and forms is derived from the password with scrypt. So a new password ends all
sessions, and a restart or a second replica ends none. The password itself is not kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import InitVar, dataclass, field

from pool.core.clock import Clock
from pool.core.ids import RandomIds
from pool.ops.board.attempts import Attempts
from pool.ops.board.users import NAME, BoardRole, User, Way

COOKIE = "warmpool_board"
SESSION_S = 12 * 3600
# 32 MiB and about 0.1 s, once per process. The salt is fixed so that all replicas derive the same key.
_SCRYPT = {"salt": b"warmpool board 1", "n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": 32}


@dataclass(slots=True)
class Gate:
    """Sign-in with the board's password; disabled if there is no password."""

    password: InitVar[str]
    clock: InitVar[Clock]
    # Whether callers without a sign-in may view the board.
    open_to_all: bool
    has_password: bool = field(init=False)
    attempts: Attempts = field(init=False)
    _key: bytes = field(init=False, repr=False)
    _right: str = field(init=False, repr=False)

    def __post_init__(self, password: str, clock: Clock) -> None:
        self.has_password = bool(password)
        self.attempts = Attempts(clock)
        self._key = _derived(password) if password else RandomIds().token().encode()
        self._right = self._signed("password", password)

    def sign_in(self, name: str, password: str, *, address: str, now_s: int) -> str | None:
        """Return the value of the session cookie; None if the name or password is wrong, or the address must
        wait."""
        if not NAME.fullmatch(name) or not self._is_right(password, address):
            return None
        payload = base64.urlsafe_b64encode(f"{now_s + SESSION_S}|{name}".encode()).decode()
        return f"{payload}.{self._signed('session', payload)}"

    def wait_s(self, address: str) -> float:
        """Return the seconds until a password from this address is checked again; 0 means now."""
        return self.attempts.wait_s(address)

    def user(self, cookie: str, *, now_s: int) -> User | None:
        """Return the user of a session cookie; None if it is invalid or expired."""
        payload, _, signature = cookie.partition(".")
        if not self.has_password or not _same(signature, self._signed("session", payload)):
            return None
        try:
            until, _, name = base64.urlsafe_b64decode(payload).decode().partition("|")
            lasts = int(until) > now_s
        except (binascii.Error, ValueError):
            return None
        return User(name=name, role=BoardRole.OPERATOR, way=Way.PASSWORD, session=cookie) if lasts else None

    def accepts_header(self, header: str, *, address: str) -> bool:
        """Return whether a Basic authorization header has the password; for scripts that only read."""
        kind, _, credentials = header.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            name, _, password = base64.b64decode(credentials, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        return NAME.fullmatch(name) is not None and self._is_right(password, address)

    def form_token(self, session: str) -> str:
        """Return the token that every form of this session contains."""
        return self._signed("form", session)

    def is_form_token(self, token: str, session: str) -> bool:
        return _same(token, self.form_token(session))

    def _is_right(self, password: str, address: str) -> bool:
        if not self.has_password or self.attempts.wait_s(address) > 0:
            return False
        if not _same(self._signed("password", password), self._right):
            self.attempts.failed(address)
            return False
        self.attempts.succeeded(address)
        return True

    def _signed(self, purpose: str, text: str) -> str:
        key = hmac.digest(self._key, purpose.encode(), "sha256")
        return hmac.digest(key, text.encode(errors="replace"), "sha256").hex()


def _derived(password: str) -> bytes:
    return hashlib.scrypt(password.encode(errors="replace"), **_SCRYPT)  # type: ignore[arg-type]


def _same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(errors="replace"), b.encode(errors="replace"))
