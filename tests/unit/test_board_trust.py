"""What the board trusts, without HTTP: wrong passwords by address, headers of proxies, users of
single sign-on.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from typing import Any

import pytest

from pool.core.errors import PoolError
from pool.ops.board import attempts
from pool.ops.board.attempts import FORGOTTEN_AFTER_S, FREE, LONGEST_WAIT_S, MOST_ADDRESSES, Attempts
from pool.ops.board.gate import _SCRYPT, Gate
from pool.ops.board.proxies import Proxies
from pool.ops.board.serving import Where
from pool.ops.board.users import BoardRole, SignOn

HERE, THERE = "192.0.2.1", "192.0.2.2"
PROXY = "10.0.0.7"


@pytest.fixture(autouse=True)
def cheap_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derive the key of sessions at a small part of its cost, which no test here is about."""
    monkeypatch.setitem(_SCRYPT, "n", 2**4)


class StillClock:
    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at

    def wait(self, stop: threading.Event, seconds: float) -> bool:
        return False


def a_gate() -> tuple[Gate, StillClock]:
    clock = StillClock()
    return Gate(password="sesame", clock=clock, open_to_all=True), clock


def guess(gate: Gate, address: str, times: int) -> None:
    for _ in range(times):
        assert gate.sign_in("mallory", "guess", address=address, now_s=0) is None


def test_wrong_passwords_make_only_their_own_address_wait() -> None:
    gate, clock = a_gate()
    guess(gate, HERE, FREE)
    assert gate.wait_s(HERE) == 1.0
    assert gate.sign_in("alice", "sesame", address=HERE, now_s=0) is None, "not compared while it waits"
    assert gate.sign_in("alice", "sesame", address=THERE, now_s=0) is not None
    clock.at = 1.0
    assert gate.sign_in("alice", "sesame", address=HERE, now_s=0) is not None
    assert gate.wait_s(HERE) == 0.0


def test_each_wrong_password_doubles_the_wait_up_to_a_limit() -> None:
    gate, clock = a_gate()
    waits = []
    for _ in range(FREE + 14):
        guess(gate, HERE, 1)
        waits.append(gate.wait_s(HERE))
        clock.at += waits[-1]
    assert waits == [0.0] * (FREE - 1) + [1, 2, 4, 8, 16, 32, 64, 128, 256] + [LONGEST_WAIT_S] * 6
    clock.at += FORGOTTEN_AFTER_S + 1
    assert gate.wait_s(HERE) == 0.0
    assert len(gate.attempts) == 0


def test_a_try_during_the_wait_does_not_lengthen_it() -> None:
    gate, clock = a_gate()
    guess(gate, HERE, FREE + 100)
    assert gate.wait_s(HERE) == 1.0
    clock.at = 1.0
    assert gate.wait_s(HERE) == 0.0


def test_a_session_outlives_any_number_of_wrong_passwords_from_its_own_address() -> None:
    gate, clock = a_gate()
    cookie = gate.sign_in("alice", "sesame", address=HERE, now_s=0)
    assert cookie is not None
    for _ in range(30):
        guess(gate, HERE, 1)
        clock.at += gate.wait_s(HERE) / 2
    assert gate.wait_s(HERE) > 0
    assert gate.user(cookie, now_s=1) is not None


def test_a_flood_of_addresses_takes_bounded_memory_and_locks_out_no_other_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "MOST_ADDRESSES", 50)
    found = Attempts(StillClock())
    for n in range(10_000):
        found.failed(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert len(found) == 50
    assert found.wait_s(HERE) == 0.0
    assert MOST_ADDRESSES <= 10_000


def test_an_address_that_keeps_guessing_is_not_evicted_by_newer_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "MOST_ADDRESSES", 3)
    found = Attempts(StillClock())
    for n in range(20):
        found.failed(HERE)
        found.failed(f"10.0.0.{n}")
    assert found.wait_s(HERE) > 0


def test_all_addresses_of_one_ipv6_prefix_count_as_one() -> None:
    found = Attempts(StillClock())
    for n in range(FREE):
        found.failed(f"2001:db8:0:1::{n + 1:x}")
    assert found.wait_s("2001:db8:0:1:ffff::1") > 0
    assert found.wait_s("2001:db8:0:2::1") == 0
    for _ in range(FREE):
        found.failed(f"::ffff:{HERE}")
    assert found.wait_s(HERE) > 0
    assert found.wait_s(f"::ffff:{THERE}") == 0


def test_the_key_of_sessions_is_not_one_hash_of_the_password_and_the_password_is_not_kept() -> None:
    gate, _ = a_gate()
    cookie = gate.sign_in("alice", "sesame", address=HERE, now_s=0)
    assert cookie is not None
    told, _, signature = cookie.partition(".")
    digests = [hashlib.sha256(text).digest() for text in (b"sesame", b"warmpool board session sesame")]
    fast = [b"sesame", *digests]
    fast += [hmac.digest(key, b"session", "sha256") for key in fast]
    assert signature not in {hmac.new(key, told.encode(), hashlib.sha256).hexdigest() for key in fast}
    kept = [getattr(gate, name) for name in Gate.__slots__]
    assert not any(b"sesame" in (k if isinstance(k, bytes) else str(k).encode()) for k in kept)
    assert "sesame" not in repr(gate)


def scope(peer: str = PROXY, scheme: str = "http", *headers: tuple[str, str]) -> dict[str, Any]:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return {"type": "http", "client": (peer, 1), "scheme": scheme, "headers": raw}


def forwarded(peer: str, *values: str) -> str:
    proxies = Proxies.parse(["10.0.0.0/24", "fd00::1"])
    return proxies.address(scope(peer, "http", *(("X-Forwarded-For", v) for v in values)))


@pytest.mark.parametrize(
    ("peer", "values", "address"),
    [
        (HERE, ("6.6.6.6",), HERE),
        (PROXY, (), PROXY),
        (PROXY, (HERE,), HERE),
        (PROXY, (f"6.6.6.6, {HERE}",), HERE),
        (PROXY, ("6.6.6.6", HERE), HERE),
        (PROXY, (f"6.6.6.6, {HERE}, 10.0.0.9",), HERE),
        (PROXY, (f"{HERE}:4711",), HERE),
        (PROXY, ("[2001:db8::1]:4711",), "2001:db8::1"),
        (PROXY, (f"{HERE}, unknown",), PROXY),
        (PROXY, ("10.0.0.8, 10.0.0.9",), "10.0.0.8"),
        ("fd00::1", (HERE,), HERE),
        (f"::ffff:{PROXY}", (HERE,), HERE),
        ("", (HERE,), ""),
    ],
)
def test_the_callers_address_is_the_last_one_that_no_trusted_proxy_has(
    peer: str, values: tuple[str, ...], address: str
) -> None:
    assert forwarded(peer, *values) == address


def test_the_tls_header_counts_only_from_a_trusted_proxy() -> None:
    proxies = Proxies.parse([PROXY])
    said = ("X-Forwarded-Proto", "https")
    assert proxies.is_tls(scope(PROXY, "http", said))
    assert not proxies.is_tls(scope(HERE, "http", said))
    assert not proxies.is_tls(scope(PROXY, "http"))
    assert not proxies.is_tls(scope(PROXY, "http", ("X-Forwarded-Proto", "https, http")))
    assert proxies.is_tls(scope(HERE, "https"))
    assert not Proxies().is_tls(scope(PROXY, "http", said))


SIGN_ON = SignOn(
    user_header="X-Forwarded-User",
    groups_header="X-Forwarded-Groups",
    operators=frozenset({"alice@acme.test"}),
    operator_groups=frozenset({"sre"}),
)


def role(*headers: tuple[str, str], peer: str = PROXY, sign_on: SignOn = SIGN_ON) -> BoardRole | None:
    user = sign_on.user(Proxies.parse([PROXY]), scope(peer, "http", *headers))
    return None if user is None else user.role


def test_a_trusted_proxy_names_the_user_and_its_groups_give_the_role() -> None:
    alice, bob = ("X-Forwarded-User", "alice@acme.test"), ("X-Forwarded-User", "bob@acme.test")
    assert role(alice) is BoardRole.OPERATOR
    assert role(bob) is BoardRole.VIEWER
    assert role(bob, ("X-Forwarded-Groups", "dev, sre")) is BoardRole.OPERATOR
    assert role(bob, ("X-Forwarded-Groups", "dev, sre-readers")) is BoardRole.VIEWER
    assert role() is None
    assert role(alice, sign_on=SignOn()) is None


def test_an_untrusted_repeated_or_invalid_user_header_is_ignored() -> None:
    alice = ("X-Forwarded-User", "alice@acme.test")
    assert role(alice, peer=HERE) is None
    assert role(alice, ("X-Forwarded-User", "bob@acme.test")) is None
    for name in ("", "a" * 200, "<b>", "al\x85ice", "alice, bob", "alice (cli)"):
        assert role(("X-Forwarded-User", name)) is None
    groups = ("X-Forwarded-Groups", "sre")
    assert role(("X-Forwarded-User", "bob"), groups, ("X-Forwarded-Groups", "dev")) is BoardRole.VIEWER


@pytest.mark.parametrize(
    ("proxies", "sign_on", "sentence"),
    [
        ([], SignOn(user_header="X-User"), "needs a trusted proxy"),
        ([PROXY], SignOn(user_header="X User:"), "invalid header name"),
        ([PROXY], SignOn(operators=frozenset({"alice"})), "not the user header"),
        ([PROXY], SignOn(groups_header="X-Groups"), "not the user header"),
        ([PROXY], SignOn(user_header="X-User", operator_groups=frozenset({"sre"})), "not the groups header"),
    ],
)
def test_contradicting_settings_of_single_sign_on_are_refused_with_an_explanation(
    proxies: list[str], sign_on: SignOn, sentence: str
) -> None:
    with pytest.raises(PoolError, match=sentence):
        Where(proxies=Proxies.parse(proxies), sign_on=sign_on).must_be_safe()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("proxy.local", "invalid trusted proxy"),
        ("10.0.0.0/99", "invalid trusted proxy"),
        ("0.0.0.0/0", "every"),
        ("::/0", "every"),
    ],
)
def test_a_trusted_proxy_that_is_no_network_is_refused_with_an_explanation(text: str, sentence: str) -> None:
    with pytest.raises(PoolError, match=sentence):
        Proxies.parse([text])


def test_a_board_off_loopback_starts_with_single_sign_on_alone() -> None:
    Where(host="0.0.0.0", proxies=Proxies.parse([PROXY]), sign_on=SignOn(user_header="X-User")).must_be_safe()
