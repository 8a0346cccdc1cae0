"""Claim tokens: equal for the same claim, invalid anywhere else."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.core import tokens

MASTER = b"k" * 32
WORKER_IMAGE = Path(__file__).parents[2] / "docs" / "worker-image.md"
KEY = tokens.worker_key(MASTER, "w-1")


def test_the_token_is_the_hmac_that_workers_compute_for_themselves() -> None:
    key = hmac.new(MASTER, b"worker|w-1", hashlib.sha256).digest()
    assert key.hex() == KEY
    assert tokens.token(KEY, "c-1", 3) == hmac.new(key, b"c-1|3", hashlib.sha256).hexdigest()


def test_the_same_claim_gives_the_same_token_again() -> None:
    assert tokens.token(KEY, "c-1", 3) == tokens.token(tokens.worker_key(MASTER, "w-1"), "c-1", 3)


@pytest.mark.parametrize(
    ("key", "claim", "epoch"),
    [
        (tokens.worker_key(MASTER, "w-2"), "c-1", 3),
        (tokens.worker_key(b"x" * 32, "w-1"), "c-1", 3),
        (KEY, "c-2", 3),
        (KEY, "c-1", 4),
        (KEY, "c-1", 2),
    ],
    ids=["another worker", "another master key", "another claim", "a later epoch", "an earlier epoch"],
)
def test_a_token_is_valid_for_one_worker_claim_and_epoch_only(key: str, claim: str, epoch: int) -> None:
    assert tokens.verify(KEY, "c-1", 3, tokens.token(KEY, "c-1", 3))
    assert not tokens.verify(key, claim, epoch, tokens.token(KEY, "c-1", 3))


@given(st.text(max_size=80))
def test_any_invalid_token_is_refused_without_an_error(presented: str) -> None:
    assert not tokens.verify(KEY, "c-1", 3, presented)


def test_a_worker_key_does_not_reveal_the_master_key() -> None:
    assert MASTER.hex() not in KEY
    assert len(bytes.fromhex(KEY)) == 32


def test_headers_carry_claim_epoch_and_token() -> None:
    assert tokens.headers("c-1", 3, "secret") == {
        "Authorization": "Bearer secret",
        "X-Warmpool-Claim": "c-1",
        "X-Warmpool-Epoch": "3",
    }


def test_the_vectors_of_the_documentation_are_right() -> None:
    rows = re.findall(
        r"^\| `(\w{64})` \| `([\w-]+)` \| `(\d+)` \| `(\w{64})` \|$", WORKER_IMAGE.read_text(), re.M
    )
    assert len(rows) == 3
    for key, claim, epoch, token in rows:
        assert tokens.token(key, claim, int(epoch)) == token
        assert tokens.verify(key, claim, int(epoch), token)
