"""The board's password: sessions as signed cookies, a token in every form, and wrong passwords limited by address.

The key of cookies and forms is derived from the password by scrypt: a new password ends all sessions, a restart or a second replica ends
none. The password itself is not kept.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import InitVar, dataclass, field

from pool.board.attempts import Attempts
from pool.board.users import NAME, Role, User, Way
from pool.clock import Clock
from pool.ids import RandomIds

COOKIE = "warmpool_board"
SESSION_S = 12 * 3600
# 32 MiB and about a tenth of a second, once per process. The salt is fixed so that replicas agree without sharing anything else.
_SCRYPT = {"salt": b"warmpool board 1", "n": 2**15, "r": 8, "p": 1, "maxmem": 2**26, "dklen": 32}


@dataclass(slots=True)
class Gate:
    """One board's password; without one nobody can sign in with it."""

    password: InitVar[str]
    clock: InitVar[Clock]
    # Whether callers that have not signed in may look.
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
        """A cookie's value; None if the name or the password is wrong, or if the address has to wait."""
        if not NAME.fullmatch(name) or not self._is_right(password, address):
            return None
        told = base64.urlsafe_b64encode(f"{now_s + SESSION_S}|{name}".encode()).decode()
        return f"{told}.{self._signed('session', told)}"

    def wait_s(self, address: str) -> float:
        """Seconds until a password from this address is compared again; 0: now."""
        return self.attempts.wait_s(address)

    def user(self, cookie: str, *, now_s: int) -> User | None:
        """The user who signed in with this cookie, until it expires."""
        told, _, signature = cookie.partition(".")
        if not self.has_password or not _same(signature, self._signed("session", told)):
            return None
        try:
            until, _, name = base64.urlsafe_b64decode(told).decode().partition("|")
            lasts = int(until) > now_s
        except (binascii.Error, ValueError):
            return None
        return User(name=name, role=Role.OPERATOR, way=Way.PASSWORD, session=cookie) if lasts else None

    def accepts_header(self, header: str, *, address: str) -> bool:
        """Whether a Basic header has the password, for scripts that only read."""
        kind, _, word = header.partition(" ")
        if kind.lower() != "basic":
            return False
        try:
            name, _, password = base64.b64decode(word, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        return NAME.fullmatch(name) is not None and self._is_right(password, address)

    def form_token(self, session: str) -> str:
        """What every form of this session carries."""
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
