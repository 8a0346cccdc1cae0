"""The master key changes while the pool runs: keys of the old one stay valid until it is removed."""

from __future__ import annotations

import pytest

from pool.core import tokens
from pool.core.errors import Transient
from pool.core.ids import RandomIds, WorkerId
from pool.core.keys import Keyring

OLD, NEW = b"old" * 16, b"new" * 16
BEFORE = Keyring(current=OLD)
ANNOUNCED = Keyring(current=OLD, next=NEW)
CHANGED = Keyring(current=NEW, previous=OLD)
AFTER = Keyring(current=NEW)


def a_worker(keys: Keyring) -> WorkerId:
    return keys.marked(RandomIds().worker())


def test_a_worker_has_one_key_for_life_in_every_process() -> None:
    old = a_worker(BEFORE)
    assert {k.worker_key(old) for k in (BEFORE, ANNOUNCED, CHANGED)} == {tokens.worker_key(OLD, old)}
    new = a_worker(CHANGED)
    assert {k.worker_key(new) for k in (ANNOUNCED, CHANGED, AFTER)} == {tokens.worker_key(NEW, new)}


def test_a_process_without_the_key_raises_and_returns_no_wrong_token() -> None:
    for keys, worker in ((BEFORE, a_worker(CHANGED)), (AFTER, a_worker(BEFORE))):
        assert not keys.knows(worker)
        with pytest.raises(Transient, match="master key"):
            keys.worker_key(worker)


def test_a_worker_without_a_mark_uses_the_oldest_key() -> None:
    for worker in map(WorkerId, ("w-6f6tkyn22157ynwjwrfm", "w-later-000001")):
        assert BEFORE.worker_key(worker) == ANNOUNCED.worker_key(worker) == CHANGED.worker_key(worker)
        assert CHANGED.worker_key(worker) == tokens.worker_key(OLD, worker)


def test_workers_of_an_older_key_are_recognized() -> None:
    assert CHANGED.is_current(a_worker(CHANGED))
    assert not CHANGED.is_current(a_worker(BEFORE))
    assert not AFTER.is_current(a_worker(BEFORE))


def test_an_org_key_is_accepted_under_every_master_key_and_issued_under_the_current_one() -> None:
    old, new = (k.org_key("acme", 1, own_queue=False).secret for k in (BEFORE, AFTER))
    assert old != new
    assert BEFORE.org_secrets("acme", 1) == [old]
    assert set(ANNOUNCED.org_secrets("acme", 1)) == set(CHANGED.org_secrets("acme", 1)) == {old, new}
    assert CHANGED.org_key("acme", 1, own_queue=False).secret == new
    assert AFTER.org_secrets("acme", 1) == [new]
    assert ANNOUNCED.org_key("acme", 1, own_queue=False).secret == old


def test_keys_and_marks_do_not_reveal_the_master_key() -> None:
    assert OLD.hex() not in a_worker(BEFORE)
    assert "old" not in repr(BEFORE)
    assert a_worker(BEFORE)[-6:] != a_worker(AFTER)[-6:]
    assert len(a_worker(BEFORE)) <= 63
