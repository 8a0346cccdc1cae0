"""What the lane reads, and what it drops."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.client.messages import Message
from tasks.broker import STAMPS_A_MESSAGE, Sending, together
from tasks.letters import MOST_LEVELS, Letter, Unread, Unreadable, read


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


LIMIT = 100_000


def letter_of(message: Any) -> Letter:
    letter = read(raw(message), LIMIT)
    assert isinstance(letter, Letter), letter
    return letter


def why_unread(message: bytes, limit_bytes: int = LIMIT) -> Unread:
    unreadable = read(message, limit_bytes)
    assert isinstance(unreadable, Unreadable), unreadable
    return unreadable.why


def with_header(name: str, value: Any) -> dict[str, Any]:
    return envelope(headers={**HEADERS, name: value})


def test_what_our_client_sends_is_read_and_is_asked_again_by_itself() -> None:
    letter = letter_of(envelope())
    assert (letter.task, letter.task_id, letter.kwargs) == ("pool.acquire", "t-1", {"org": "acme"})
    assert letter.address == "warmpool.reply.test.x"
    assert letter.asks_again
    assert letter.wants_result
    assert not letter.objection


@pytest.mark.parametrize("address", ["celery-task-meta-x", "", None])
def test_no_other_address_is_written_to_and_its_sender_relies_on_the_broker(address: Any) -> None:
    message = envelope()
    message["properties"]["reply_to"] = address
    letter = letter_of(message)
    assert letter.address == ""
    assert not letter.asks_again


HEADERS = envelope()["headers"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"body": "not base64"}, Unread.BODY),
        ({"body": None}, Unread.BODY),
        ({"body": body({}, {}, {})}, Unread.BODY),
        ({"body": body([], [], {})}, Unread.BODY),
        ({"body": body([], {}, [])}, Unread.BODY),
        ({"body": body("text")}, Unread.BODY),
        ({"content-type": "application/x-python-serialize"}, Unread.CONTENT),
        ({"content-encoding": "gzip"}, Unread.CONTENT),
        ({"headers": None}, Unread.SHAPE),
        ({"headers": {**HEADERS, "task": {}}}, Unread.SHAPE),
        ({"headers": {**HEADERS, "task": "pool.\x00"}}, Unread.SHAPE),
        ({"properties": None}, Unread.SHAPE),
    ],
)
def test_unreadable_message_is_dropped_for_its_reason(change: dict[str, Any], why: Unread) -> None:
    assert why_unread(raw(envelope(**change))) is why


@pytest.mark.parametrize("task_id", [None, "", 7, "x" * 257, "a\x00", "a b", "\ud800", "ä", [], {"a": 1}])
def test_id_is_1_to_256_printable_ascii_characters(task_id: Any) -> None:
    assert why_unread(raw(with_header("id", task_id))) is Unread.TASK_ID
    assert letter_of(with_header("id", "x" * 256)).task_id == "x" * 256


@pytest.mark.parametrize("address", [5, [], {}, True, "warmpool.reply.\ud800", "warmpool.reply." + "x" * 300])
def test_reply_address_is_printable_ascii_or_none(address: Any) -> None:
    message = envelope()
    message["properties"]["reply_to"] = address
    assert why_unread(raw(message)) is Unread.ADDRESS


def test_message_above_the_limit_is_dropped() -> None:
    message = raw(envelope())
    assert why_unread(message, len(message) - 1) is Unread.TOO_LARGE
    assert isinstance(read(message, len(message)), Letter)


def nested(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("levels", [40, 900, 100_000])
def test_deep_message_is_dropped(levels: int) -> None:
    deep = "[" * levels + "]" * levels
    message = json.dumps(envelope(headers={**HEADERS, "x": "here"})).replace('"here"', deep).encode()
    assert why_unread(message, 10_000_000) is Unread.TOO_DEEP
    inner = base64.b64encode(f"[[{deep}], {{}}, {{}}]".encode()).decode()
    assert why_unread(raw(envelope(body=inner)), 10_000_000) is Unread.TOO_DEEP


def test_long_flat_list_of_claims_is_read() -> None:
    claims = [f"c-{n}[" for n in range(1000)]
    message = envelope(body=body([], {"claim_ids": claims}, {}))
    assert letter_of(message).kwargs == {"claim_ids": claims}
    assert letter_of(envelope(body=body([nested(MOST_LEVELS - 5)], {}, {}))).args


@pytest.mark.parametrize("number", ["9" * 21, "9" * 5000, "-" + "9" * 5000, "NaN", "Infinity", "1e999"])
def test_number_of_any_length_is_bounded(number: str) -> None:
    inner = base64.b64encode(f'[[], {{"wait_s": {number}}}, {{}}]'.encode()).decode()
    assert isinstance(letter_of(envelope(body=inner)).kwargs["wait_s"], float)


@pytest.mark.parametrize("number", ["9" * 21, "9" * 5000, "-" + "9" * 5000, "NaN", "Infinity", "1e999"])
def test_frame_with_a_number_without_bound_is_dropped(number: str) -> None:
    """It is kept at the broker until it is answered, and kombu reads it again from there."""
    frame = json.dumps(envelope(headers={**HEADERS, "x": "here"})).replace('"here"', number)
    assert why_unread(frame.encode()) is Unread.NOT_JSON


@pytest.mark.parametrize("follower", ["callbacks", "errbacks", "chain", "chord"])
def test_follower_is_objected_to_and_named(follower: str) -> None:
    letter = letter_of(envelope(body=body([], {}, {follower: [{"task": "pool.retire"}]})))
    assert letter.objection.startswith("link: ")


def test_task_of_another_queue_is_objected_to_and_named() -> None:
    assert letter_of(with_header("task", "pool.spawn")).refusal.startswith("task: 'pool.spawn'")


def test_eta_and_expires_are_read_as_times() -> None:
    letter = letter_of(
        envelope(headers={**HEADERS, "eta": "2031-05-01T12:00:00", "expires": "2031-05-01T12:00:00Z"})
    )
    assert letter.eta == letter.expires == datetime(2031, 5, 1, 12, tzinfo=UTC)
    assert not letter.objection
    for name in ("eta", "expires"):
        for value in ("soon", 7, ["x"], "2031-05-01T12:00:00" + "0" * 300):
            assert letter_of(with_header(name, value)).objection.startswith(
                f"{name}: must be an ISO 8601 time"
            )


@pytest.mark.parametrize(
    ("name", "value"),
    [("compression", "application/x-gzip"), ("retries", "many"), ("timelimit", "x"), ("timelimit", [1, "x"])],
)
def test_header_of_a_kind_that_is_not_taken_is_named(name: str, value: Any) -> None:
    assert letter_of(with_header(name, value)).objection.startswith(f"{name}: ")


@pytest.mark.parametrize(
    "option", [{"retries": 1}, {"timelimit": [1, 2]}, {"timelimit": [None, 0.5]}, {"group": "g"}]
)
def test_options_that_change_nothing_here_are_taken(option: dict[str, Any]) -> None:
    assert not letter_of(envelope(headers={**HEADERS, **option})).objection


def test_letter_that_is_kept_is_the_same_call_in_a_frame_of_our_own() -> None:
    message = envelope(
        headers={**HEADERS, "warmpool_auth": "proof", "eta": "2031-05-01T12:00:00+00:00", "x": [1]}
    )
    message["properties"].update(delivery_info="nonsense", delivery_tag=7, priority={})
    letter = letter_of(message)
    frame, exchange, queue = json.loads(letter.kept("tag", "acquire"))
    assert (exchange, queue) == ("", "acquire")
    assert frame["properties"]["delivery_info"] == {"exchange": "", "routing_key": "acquire"}
    again = letter_of(frame)
    assert (again.asked, again.headers, again.eta) == (letter.asked, letter.headers, letter.eta)
    assert "x" not in frame["headers"]


def test_text_of_a_stranger_is_cleaned() -> None:
    letter = letter_of(envelope(headers={**HEADERS, "origin": "a\x00\ud800\n" + "x" * 5000, "argsrepr": 7}))
    assert letter.headers["origin"] == "a???" + "x" * 252
    assert letter.headers["argsrepr"] == ""
    typed = letter_of(with_header("warmpool_auth", {"__type__": [], "__value__": 1}))
    assert typed.headers["warmpool_auth"] == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(raw))
def test_nothing_that_arrives_raises(message: bytes) -> None:
    assert isinstance(read(message, LIMIT), Unreadable)


@given(st.sampled_from(sorted(envelope())), JSON)
def test_a_spoilt_part_raises_nothing(part: str, value: Any) -> None:
    read(raw(envelope(**{part: value})), LIMIT)


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
