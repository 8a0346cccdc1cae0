"""Attacks by one sender, with the key of its own org or without a key, that affected the whole pool
with a few messages. None may be possible again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from pool.core.names import REPLY_PREFIX
from pool.store import passes, schema
from tests.support.hostile import INTERNAL_TASKS, QUEUES
from tests.support.hostile_draft import Draft, Splice, deep, digits
from tests.support.pushing import Sender, never_sent
from tests.support.signed import MASTER_KEY, key_of, refusals
from tests.support.standing import Standing, drained, passes_go_on, peak_memory, refused_messages
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

WARM = 4
# Longest wait in a pool that works; machines differ.
SOON_S = 20.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    url = request.getfixturevalue("postgres").create_database("hostile_messages")
    settings = {
        "pool": {"signed_requests": True, "master_key": MASTER_KEY, "max_workers": WARM},
        # At the cap there is never an idle worker of the other profile.
        "profiles": {"default": {"warm_target": WARM}, "scarce": {"warm_target": 0}},
    }
    with System(tmp_path_factory.mktemp("hostile"), url, settings=settings, measured=True) as made:
        made.run(*EVERYTHING).wait_idle(WARM)
        yield made
        assert made.wrongs() == []


@pytest.fixture
def system(pool: System) -> Iterator[System]:
    """Check the same processes and threads before and after each test, within the chart's memory,
    and that the pool serves.
    """
    standing = Standing(pool.mend())
    yield pool
    standing.assert_stands()
    with Sender(pool, key=key_of("honest")) as honest:
        assert honest.asked("pool.cancel", request_id="none") == {"outcome": "unknown_request"}
    standing.assert_stands()


@pytest.fixture
def attacker(system: System) -> Iterator[Sender]:
    with Sender(system, key=key_of("attacker")) as made:
        yield made


@pytest.fixture
def keyless(system: System) -> Iterator[Sender]:
    with Sender(system) as made:
        yield made


@pytest.fixture
def honest(system: System) -> Iterator[Sender]:
    with Sender(system, key=key_of("honest")) as made:
        yield made


def test_one_bad_id_costs_no_other_caller_its_answer(attacker: Sender, honest: Sender) -> None:
    bad = attacker.draft("pool.renew", claim_ids=["none"])
    bad.task_id, bad.reply_to = "", ""
    _beside_renewals(attacker, honest, bad)


def test_one_bad_reply_address_costs_no_other_caller_its_answer(attacker: Sender, honest: Sender) -> None:
    bad = attacker.draft("pool.renew", claim_ids=["none"])
    bad.reply_to = f"{REPLY_PREFIX}\ud800"
    _beside_renewals(attacker, honest, bad)


def _beside_renewals(attacker: Sender, honest: Sender, bad: Draft) -> None:
    """Sixty renewals of another org in the same batch are all answered."""
    good = [honest.encoded(honest.draft("pool.renew", claim_ids=[f"claim-{i}"])) for i in range(60)]
    honest.redis.lpush("acquire", *good[:30], attacker.encoded(bad), *good[30:])
    answers = honest.answers(60)
    assert {claim for answer in answers for claim in answer["gone"]} == {f"claim-{i}" for i in range(60)}


BOMBS = {
    "levels": deep(5_000),
    "objects": deep(5_000, '{"a":', "}"),
    "few levels more than the parser takes": deep(985),
    "digits": digits(5_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("place", ["message", "header", "property", "argument"])
def test_unbounded_nesting_and_numbers_end_no_process(
    system: System, keyless: Sender, honest: Sender, bomb: str, place: str
) -> None:
    for queue in QUEUES:
        draft = keyless.draft("pool.acquire", org="attacker")
        if place == "message":
            keyless.redis.lpush(queue, BOMBS[bomb].text)
            continue
        where = {"header": draft.headers, "property": draft.properties, "argument": draft.kwargs}[place]
        where["bomb"] = BOMBS[bomb]
        keyless.push(draft, queue)
    drained(system)
    assert honest.asked("pool.cancel", request_id="none") == {"outcome": "unknown_request"}
    assert _requests_of(system, "attacker") == 0


@pytest.mark.parametrize(
    "text",
    [
        '{"__type__": [], "__value__": 1}',
        '{"__type__": "decimal", "__value__": "abc"}',
        '{"__type__": "bytes", "__value__": 5}',
    ],
)
def test_text_that_the_decoder_of_kombu_fails_on_ends_no_process(
    system: System, keyless: Sender, honest: Sender, text: str
) -> None:
    for queue in QUEUES:
        keyless.redis.lpush(queue, text)
    drained(system)
    assert honest.asked("pool.cancel", request_id="none") == {"outcome": "unknown_request"}


def test_large_messages_take_no_more_memory_than_their_limit(
    system: System, keyless: Sender, honest: Sender
) -> None:
    draft = keyless.draft("pool.acquire", org="x" * 9_800_000)
    raw, before = keyless.encoded(draft), peak_memory(system["acquire"].pid)
    with system["acquire"].frozen():
        for _ in range(40):
            keyless.redis.lpush("acquire", raw)
    assert honest.asked("pool.cancel", request_id="none") == {"outcome": "unknown_request"}
    drained(system)
    grown = peak_memory(system["acquire"].pid) - before
    assert grown < 150 * 2**20, f"{grown >> 20} MiB more than before"


def test_an_origin_with_a_nul_stops_no_audit_entry_and_no_mark(
    system: System, keyless: Sender, honest: Sender
) -> None:
    draft = keyless.draft("pool.cancel", request_id="x")
    draft.headers["origin"] = "a\x00b"
    keyless.push(draft)
    granted = honest.asked("pool.acquire", request_id="after-a-nul", wait_s=20)
    assert granted["outcome"] == "granted", granted
    eventually(lambda: _replied(system, "after-a-nul"), within_s=SOON_S)
    # By now all effects of the first message exist: what follows comes from the second.
    passes_go_on(system)
    known = len(refusals(system))
    keyless.push(keyless.draft("pool.cancel", request_id="x"))
    eventually(lambda: len(refusals(system)) > known, within_s=SOON_S)
    # Twice as long as reap takes to deliver answers without a mark.
    passes_go_on(system)
    passes_go_on(system)
    assert honest.nothing_came()
    assert honest.asked("pool.release", claim_id=granted["claim_id"]) == {"outcome": "released"}


FOLLOWER: dict[str, Any] = {"args": [], "kwargs": {}, "subtask_type": None, "immutable": True}
FOLLOWERS: dict[str, list[str]] = {"pool.retire": ["no-worker"], "pool.collect_garbage": []}


# Calls that fail before the pool checks their followers: an unknown argument, and an address that
# is no text.
FAILING: dict[str, dict[str, Any]] = {
    "pool.canary": {"args": [1], "reply_to": ""},
    "pool.cancel": {"args": [], "reply_to": 5},
}


@pytest.mark.parametrize("queue", ["acquire", "acquire.general"])
@pytest.mark.parametrize("follower", FOLLOWERS)
@pytest.mark.parametrize("task", FAILING)
def test_an_unsigned_call_that_fails_sends_no_task_with_the_rights_of_the_pool(
    system: System, keyless: Sender, queue: str, follower: str, task: str
) -> None:
    draft = replace(keyless.draft(task), **FAILING[task])
    draft.headers["ignore_result"] = True
    mark = f"follower-of-{draft.task_id}"
    named = {"task": follower, "args": FOLLOWERS[follower], "options": {"task_id": mark}}
    draft.embed["errbacks"] = [FOLLOWER | named]
    refused = refused_messages(system)
    with never_sent(system, mark):
        keyless.push(draft, queue)
        eventually(lambda: refused_messages(system) > refused, within_s=SOON_S)
        drained(system)


@pytest.mark.parametrize("name", ["callbacks", "errbacks", "chain", "chord"])
def test_a_signed_call_with_a_follower_is_refused_and_the_follower_is_not_sent(
    system: System, attacker: Sender, name: str
) -> None:
    draft = attacker.draft("pool.acquire", request_id=f"with-{name}")
    mark = f"follower-of-{draft.task_id}"
    follower = FOLLOWER | {"task": "pool.collect_garbage", "options": {"task_id": mark}}
    draft.embed[name] = follower if name == "chord" else [follower]
    with never_sent(system, mark):
        attacker.push(draft)
        [answer] = attacker.answers()
        assert (answer["outcome"], answer.get("reason")) == ("refused", "invalid"), answer
        assert name in answer["detail"]
        drained(system)
    assert _requests_of(system, "attacker") == 0


@pytest.mark.parametrize("queue", QUEUES)
def test_internal_tasks_that_the_control_plane_did_not_sign_are_dropped(
    system: System, keyless: Sender, attacker: Sender, queue: str
) -> None:
    with system.store.write() as tx:  # it is due: an accepted message runs it
        tx.execute(
            update(schema.passes)
            .values(last_attempt_at=None)
            .where(schema.passes.c.name == "collect_garbage")
        )
    refused = refused_messages(system)
    for task in INTERNAL_TASKS:
        for sender in (keyless, attacker):
            draft = sender.draft(task)
            draft.reply_to = ""
            sender.push(draft, queue)
    eventually(
        lambda: (
            refused_messages(system) >= refused + 2 * len(INTERNAL_TASKS)
            or _attempted(system, "collect_garbage") is not None
        ),
        within_s=SOON_S,
    )
    drained(system)
    assert _attempted(system, "collect_garbage") is None, "the pool ran a pass for a stranger"


def test_numbers_as_ids_wedge_no_consumer(system: System, keyless: Sender, honest: Sender) -> None:
    for number in range(40):
        draft = keyless.draft("pool.acquire", org="attacker")
        draft.task_id, draft.reply_to = number, ""
        keyless.push(draft, "acquire" if number % 2 else "acquire.general")
    drained(system)
    # Celery's consumer waits for the time that a message names.
    later = honest.draft("pool.cancel", request_id="none")
    later.reply_to = ""
    later.headers["eta"] = (datetime.now(UTC) + timedelta(seconds=1)).isoformat()
    honest.push(later)
    assert honest.result(later) == {"outcome": "unknown_request"}


def test_unreadable_messages_are_counted_and_logged_a_few_times_only(system: System, keyless: Sender) -> None:
    before, lines = refused_messages(system), _log_lines(system)
    for queue in QUEUES:
        keyless.redis.lpush(queue, *[f"no message {number}" for number in range(400)])
    drained(system)
    eventually(lambda: refused_messages(system) >= before + 400 * len(QUEUES), within_s=SOON_S)
    assert _log_lines(system) - lines < 400


HEADERS_REFUSED: dict[str, Any] = {
    "eta": (datetime.now(UTC) + timedelta(days=1)).isoformat(),
    "compression": "application/x-gzip",
    "retries": "many",
    "timelimit": "for ever",
}


@pytest.mark.parametrize("header", HEADERS_REFUSED)
def test_an_unsupported_header_is_named_in_the_refusal(system: System, attacker: Sender, header: str) -> None:
    draft = attacker.draft("pool.acquire", request_id=f"with-{header}")
    draft.headers[header] = HEADERS_REFUSED[header]
    attacker.push(draft)
    [answer] = attacker.answers()
    assert (answer["outcome"], answer.get("reason")) == ("refused", "invalid"), answer
    assert header in answer["detail"]
    assert _requests_of(system, "attacker") == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "7" * 21])
def test_nan_and_infinity_write_nothing(system: System, attacker: Sender, number: str) -> None:
    refused = refused_messages(system)
    attacker.push(attacker.draft("pool.acquire", request_id="no-number", wait_s=Splice(number)))
    eventually(lambda: refused_messages(system) > refused or not attacker.nothing_came(), within_s=SOON_S)
    if not attacker.nothing_came():
        [answer] = attacker.answers()
        assert (answer["outcome"], answer.get("reason")) == ("refused", "invalid"), answer
    assert _requests_of(system, "attacker") == 0


# Last, because a failure leaves a row that no restart removes.
def test_a_waiting_acquire_without_an_id_stops_no_timer_and_no_pass(
    system: System, attacker: Sender, honest: Sender
) -> None:
    waiting = attacker.draft("pool.acquire", profile="scarce", request_id="without-an-id", wait_s=1)
    waiting.task_id, waiting.reply_to = "", ""
    attacker.push(waiting)
    drained(system, ("acquire", "acquire.general"))
    for number in range(2):
        answer = honest.asked("pool.acquire", profile="scarce", request_id=f"scarce-{number}", wait_s=1)
        assert answer["reason"] == "wait_timeout", answer
        passes_go_on(system)
    assert _requests_of(system, "attacker") == 0


def _requests_of(system: System, org: str) -> int:
    requests = schema.requests
    with system.store.read() as tx:
        return len(tx.execute(select(requests.c.pk).where(requests.c.org == org)).all())


def _replied(system: System, request_id: str) -> bool:
    requests = schema.requests
    with system.store.read() as tx:
        found = select(requests.c.replied_at).where(requests.c.request_id == request_id)
        return tx.execute(found).scalar_one() is not None


def _attempted(system: System, name: str) -> object:
    with system.store.read() as tx:
        return passes.get(tx, name).last_attempt_at


def _log_lines(system: System) -> int:
    return sum(part.log().count("\n") for part in system.parts.values())
