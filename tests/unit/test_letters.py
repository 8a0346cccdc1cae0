"""What the lane reads itself, and what it leaves to Celery."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.client.messages import Message
from tasks.broker import STAMPS_A_MESSAGE, Sending, together
from tasks.letters import read


def envelope(**changes: Any) -> dict[str, Any]:
    message = Message(
        task="pool.acquire",
        kwargs={"org": "acme"},
        task_id="t-1",
        origin="o",
        reply_to="warmpool.reply.test.x",
    )
    return {**json.loads(message.encoded("tag")), **changes}


def raw(message: Any) -> bytes:
    return json.dumps(message).encode()


def body(*parts: Any) -> str:
    return base64.b64encode(json.dumps(parts).encode()).decode()


def test_what_our_client_sends_is_read_and_is_asked_again_by_itself() -> None:
    letter = read(raw(envelope()))
    assert letter is not None
    assert (letter.task, letter.task_id, letter.kwargs) == ("pool.acquire", "t-1", {"org": "acme"})
    assert letter.address == "warmpool.reply.test.x"
    assert letter.asks_again
    assert letter.wants_result


@pytest.mark.parametrize("address", ["celery-task-meta-x", "", None, 7])
def test_no_other_address_is_written_to_and_its_sender_relies_on_the_broker(address: Any) -> None:
    message = envelope()
    message["properties"]["reply_to"] = address
    letter = read(raw(message))
    assert letter is not None
    assert letter.address == ""
    assert not letter.asks_again


HEADERS = envelope()["headers"]


@pytest.mark.parametrize(
    "change",
    [
        {"body": "not base64"},
        {"body": None},
        {"body": body([], {}, {"callbacks": [{"task": "x"}]})},
        {"body": body([], {}, {"chord": {"task": "x"}})},
        {"body": body({}, {}, {})},
        {"body": body([], [], {})},
        {"body": body("text")},
        {"content-type": "application/x-python-serialize"},
        {"content-encoding": "gzip"},
        {"headers": None},
        {"headers": {**HEADERS, "task": "pool.spawn"}},
        {"headers": {**HEADERS, "task": {}}},
        {"headers": {**HEADERS, "id": None}},
        {"headers": {**HEADERS, "eta": "2031-05-01T12:00:00Z"}},
        {"headers": {**HEADERS, "expires": "2031-05-01T12:00:00Z"}},
        {"headers": {**HEADERS, "compression": "application/x-gzip"}},
        {"headers": {**HEADERS, "timelimit": "x"}},
        {"headers": {**HEADERS, "timelimit": [1, 2]}},
        {"headers": {**HEADERS, "retries": 1}},
        {"properties": None},
    ],
)
def test_what_is_not_plain_is_left_to_celery(change: dict[str, Any]) -> None:
    assert read(raw(envelope(**change))) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(raw))
def test_nothing_that_arrives_raises(message: bytes) -> None:
    assert read(message) is None


@given(st.sampled_from(sorted(envelope())), JSON)
def test_a_spoilt_part_raises_nothing(part: str, value: Any) -> None:
    read(raw(envelope(**{part: value})))


def test_stamps_that_have_gathered_leave_together_and_each_worker_once() -> None:
    stamps = [Sending("pool.stamp", {"worker_id": f"w-{n % 20}"}) for n in range(40)]
    other = Sending("pool.retire", {"worker_id": "w-1"})
    first, *rest = together([*stamps, other])
    assert first is other
    sent = [[s.arguments["worker_id"], *s.arguments.get("others", ())] for s in rest]
    assert [w for workers in sent for w in workers] == [f"w-{n}" for n in range(20)]
    assert max(map(len, sent)) == STAMPS_A_MESSAGE


def test_a_single_stamp_is_the_message_that_it_always_was() -> None:
    one = Sending("pool.stamp", {"worker_id": "w-1"})
    assert together([one]) == [one]
