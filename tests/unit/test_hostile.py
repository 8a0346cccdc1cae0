"""The generator of hostile messages: a seed gives the same messages again, with every kind."""

from __future__ import annotations

import json

from pool.core.signing import HEADER, Asked, Proof, trouble_with
from tests.support.hostile import KINDS, Attacker, Hostile, Loot
from tests.support.hostile_draft import Draft, Splice
from tests.support.signed import key_of

KEY = key_of("attacker")


def _some(seed: int, count: int = 500) -> list[Hostile]:
    attacker = Attacker(seed, org="attacker", key=KEY, loot=Loot(org="honest"), now_s=1000)
    return [attacker.next() for _ in range(count)]


def test_a_seed_gives_the_same_messages_again() -> None:
    assert _some(1) == _some(1)
    assert _some(1, 20) != _some(2, 20)


def test_every_kind_of_hostile_message_is_generated() -> None:
    assert {message.kind for message in _some(1)} == set(KINDS)


def test_a_draft_is_signed_as_the_pool_reads_it_also_with_invalid_json() -> None:
    draft = Draft(
        task="pool.acquire", task_id="t", kwargs={"b": 1, "a": Splice("7" * 30)}, reply_to="elsewhere"
    )
    draft.signed(KEY, expires_s=1100, nonce="a-nonce-of-16-or-more")
    message = json.loads(draft.raw("tag"))
    proof = Proof.parse(message["headers"][HEADER])
    assert proof is not None
    asked = Asked(task="pool.acquire", task_id="t", address="", args=[], kwargs={"b": 1, "a": int("7" * 30)})
    assert trouble_with(proof, asked, [KEY.secret], now_s=1000, limit_s=900) is None
