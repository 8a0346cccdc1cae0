"""Signatures: each signed field counts, only the right key matches, and time comes from one clock."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pool.client.credentials import LEARN_EVERY_S, Signer, key_source
from pool.client.messages import Message
from pool.core import names, signing
from pool.core.errors import InvalidInput
from pool.core.names import ENV_ORG_KEY
from pool.core.signing import (
    HEADER,
    VALID_S,
    Asked,
    InternalTasks,
    OrgKey,
    Proof,
    SignatureProblem,
    trouble_with,
)

MASTER = b"m" * 32
KEY = signing.org_key(MASTER, "acme", 1)
NONCE = "0123456789abcdef0123456789abcdef"
ASKED = Asked(
    task="pool.acquire",
    task_id="t-1",
    address="warmpool.reply.x",
    args=[],
    kwargs={"org": "acme", "wait_s": 1.5, "profile": "ä"},
)
NOW_S = 1_000.0


def proof(asked: Asked = ASKED, key: OrgKey = KEY, expires_s: int = 1_300) -> Proof:
    made = Proof.parse(signing.sign(key, asked, expires_s=expires_s, nonce=NONCE))
    assert made is not None
    return made


def judged(shown: Proof, asked: Asked = ASKED, *, now_s: float = NOW_S) -> SignatureProblem | None:
    return trouble_with(shown, asked, [KEY.secret], now_s=now_s, limit_s=900)


def test_a_signature_is_valid_before_and_after_serialization() -> None:
    assert judged(proof()) is None
    arrived = replace(ASKED, args=json.loads("[]"), kwargs=json.loads(json.dumps(dict(ASKED.kwargs))))
    assert judged(proof(), arrived) is None
    assert judged(proof(replace(ASKED, args=("acme", ["c"]))), replace(ASKED, args=["acme", ["c"]])) is None


@pytest.mark.parametrize(
    "change",
    [
        {"task": "pool.cancel"},
        {"task_id": "t-2"},
        {"address": "warmpool.reply.y"},
        {"address": ""},
        {"args": ["acme"]},
        {"kwargs": {"org": "bolt", "wait_s": 1.5, "profile": "ä"}},
        {"kwargs": {}},
    ],
)
def test_no_signed_field_can_be_changed(change: dict[str, Any]) -> None:
    assert judged(proof(), replace(ASKED, **change)) is SignatureProblem.MISMATCH


@pytest.mark.parametrize(
    "change",
    [{"org": "bolt"}, {"version": 2}, {"expires_s": 1_301}, {"nonce": NONCE[::-1]}, {"mac": "0" * 64}],
)
def test_no_displayed_field_can_be_changed(change: dict[str, Any]) -> None:
    assert judged(replace(proof(), **change)) is SignatureProblem.MISMATCH


def test_another_orgs_key_another_version_and_another_master_do_not_match() -> None:
    for key in (
        replace(signing.org_key(MASTER, "bolt", 1), org="acme"),
        replace(signing.org_key(MASTER, "acme", 2), version=1),
        signing.org_key(b"n" * 32, "acme", 1),
    ):
        assert judged(proof(key=key)) is SignatureProblem.MISMATCH
    assert trouble_with(proof(), ASKED, [], now_s=NOW_S, limit_s=900) is SignatureProblem.UNKNOWN_KEY
    both = ["0" * 64, KEY.secret]
    assert trouble_with(proof(), ASKED, both, now_s=NOW_S, limit_s=900) is None


def test_a_signature_expires_and_its_expiry_cannot_be_extended() -> None:
    assert judged(proof(expires_s=1_000)) is SignatureProblem.EXPIRED
    assert judged(proof(expires_s=1_001)) is None
    assert judged(proof(expires_s=1_900)) is None
    assert judged(proof(expires_s=1_901)) is SignatureProblem.AHEAD


def test_arguments_that_cannot_be_signed_match_nothing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert judged(proof(), replace(ASKED, args=deep)) is SignatureProblem.MISMATCH


@pytest.mark.parametrize(
    "header",
    [None, 1, "", "1:acme:1:1300", f"1:acme:0:1300:{NONCE}:{'0' * 64}", f"1:a b:1:1300:{NONCE}:{'0' * 64}",
     f"1:acme:1:1300:{NONCE}:{'0' * 64}\n", f"2:acme:1:1300:{NONCE}:{'0' * 64}",
     f"1:acme:1:1300:short:{'0' * 64}",
     f"1:acme:1:1300:*{NONCE}:{'0' * 64}"],
)  # fmt: skip
def test_an_invalid_signature_header_is_refused(header: object) -> None:
    assert Proof.parse(header) is None


def test_a_printed_key_is_read_back_and_its_repr_shows_no_secret() -> None:
    for key in (KEY, replace(KEY, own_queue=True)):
        assert OrgKey.parse(f"{key.text}\n") == key
        assert key.secret not in repr(key)
    for text in ("", "wpk1:acme:1:00", KEY.text.upper(), KEY.text.replace("acme", "a b"), f"{KEY.text}:all"):
        with pytest.raises(InvalidInput, match="org_key"):
            OrgKey.parse(text)


def test_no_orgs_key_prefix_is_a_prefix_of_anothers() -> None:
    orgs = ["a", "a.b", "a-b", "a_b", "ab", "a."]
    for one in orgs:
        for other in set(orgs) - {one}:
            assert not names.reply_prefix_of(other).startswith(names.reply_prefix_of(one))
            assert not names.task_prefix_of(other).startswith(names.task_prefix_of(one))
            assert names.queue_of(other) != names.queue_of(one)
    assert names.queue_of("general") != "acquire.general"


class ClockAt:
    """This host's monotonic clock, at the time that a test sets."""

    def __init__(self) -> None:
        self.at = 50.0

    def monotonic(self) -> float:
        return self.at

    def wait(self, stop: Any, seconds: float) -> bool:
        raise NotImplementedError


MESSAGE = Message(task="pool.renew", kwargs={"claim_ids": ["c"]}, task_id="t", origin="o", reply_to="r")


def shown(signer: Signer) -> Proof:
    made = Proof.parse(signer.headers(MESSAGE)[HEADER])
    assert made is not None
    return made


def test_every_sending_has_a_new_signature_with_the_brokers_time() -> None:
    clock = ClockAt()
    signer = Signer(lambda: KEY, clock)
    assert signer.is_due()
    signer.learn(1_000_000.0)
    clock.at += 7
    one, other = shown(signer), shown(signer)
    assert one.expires_s == 1_000_007 + VALID_S
    assert one.nonce != other.nonce
    assert not signer.is_due()
    clock.at += LEARN_EVERY_S
    assert signer.is_due()


def test_a_key_changed_in_its_file_is_used_without_a_restart(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(KEY.text + "\n")
    monkeypatch.setenv("WARMPOOL_ORG_KEY_FILE", str(file))
    source = key_source(None)
    assert source is not None
    signer = Signer(source, ClockAt())
    signer.learn(1.0)
    assert shown(signer).version == 1
    file.write_text(signing.org_key(MASTER, "acme", 2).text)
    signer.learn(2.0)
    assert shown(signer).version == 2
    file.write_text("half a ke")
    signer.learn(3.0)
    assert shown(signer).version == 2


def test_a_key_argument_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert key_source(None) is None
    monkeypatch.setenv(ENV_ORG_KEY, KEY.text)
    other = signing.org_key(MASTER, "bolt", 1)
    given, environments = key_source(other.text), key_source(None)
    assert given is not None
    assert environments is not None
    assert (given(), environments()) == (other, KEY)
    monkeypatch.setenv(ENV_ORG_KEY, "nonsense")
    with pytest.raises(InvalidInput, match="org_key"):
        key_source(None)


def test_internal_task_is_accepted_only_as_the_control_plane_signed_it() -> None:
    internal = InternalTasks.of([b"m" * 32])
    task = Asked(task="pool.retire", task_id="t", address="", args=(), kwargs={"worker_id": "w"})
    signature = internal.sign(task)
    assert internal.accepts(signature, task)
    for change in ({"task": "pool.spawn"}, {"task_id": "u"}, {"args": [1]}, {"kwargs": {"worker_id": "x"}}):
        assert not internal.accepts(signature, replace(task, **change))
    headers: tuple[object, ...] = (None, "", 5, [], "ä", signature[:-1], signature.upper())
    for header in headers:
        assert not internal.accepts(header, task)


def test_internal_task_is_accepted_while_the_master_key_changes() -> None:
    old, new = InternalTasks.of([b"o" * 32, b"n" * 32]), InternalTasks.of([b"n" * 32, b"o" * 32])
    task = Asked(task="pool.reap", task_id="t", address="", args=(), kwargs={})
    assert new.accepts(old.sign(task), task)
    assert old.accepts(new.sign(task), task)
    assert not InternalTasks.of([b"x" * 32]).accepts(new.sign(task), task)
