"""Messages that the lane reads, and messages that it drops."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.client.messages import Message
from tasks.lane.bounds import MOST_LEVELS
from tasks.lane.messages import DropReason, IncomingMessage, read
from tasks.sending import STAMPS_A_MESSAGE, Sending, stamps


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


def incoming(frame: Any) -> IncomingMessage:
    message = read(raw(frame), LIMIT)
    assert isinstance(message, IncomingMessage), message
    return message


def why_unread(message: bytes, limit_bytes: int = LIMIT) -> DropReason:
    unreadable = read(message, limit_bytes)
    assert isinstance(unreadable, DropReason), unreadable
    return unreadable


def with_header(name: str, value: Any) -> dict[str, Any]:
    return envelope(headers={**HEADERS, name: value})


def test_a_message_of_our_client_is_read_and_its_sender_repeats_it() -> None:
    message = incoming(envelope())
    assert (message.task, message.task_id, message.kwargs) == ("pool.acquire", "t-1", {"org": "acme"})
    assert message.address == "warmpool.reply.test.x"
    assert message.wants_result
    assert not message.objection


@pytest.mark.parametrize("address", ["celery-task-meta-x", "", None])
def test_any_other_reply_address_is_ignored_and_its_sender_relies_on_redelivery(address: Any) -> None:
    frame = envelope()
    frame["properties"]["reply_to"] = address
    message = incoming(frame)
    assert message.address == ""


HEADERS = envelope()["headers"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"body": "not base64"}, DropReason.BODY),
        ({"body": None}, DropReason.BODY),
        ({"body": body({}, {}, {})}, DropReason.BODY),
        ({"body": body([], [], {})}, DropReason.BODY),
        ({"body": body([], {}, [])}, DropReason.BODY),
        ({"body": body("text")}, DropReason.BODY),
        ({"content-type": "application/x-python-serialize"}, DropReason.CONTENT),
        ({"content-encoding": "gzip"}, DropReason.CONTENT),
        ({"headers": None}, DropReason.SHAPE),
        ({"headers": {**HEADERS, "task": {}}}, DropReason.SHAPE),
        ({"headers": {**HEADERS, "task": "pool.\x00"}}, DropReason.SHAPE),
        ({"properties": None}, DropReason.SHAPE),
    ],
)
def test_unreadable_message_is_dropped_for_its_reason(change: dict[str, Any], why: DropReason) -> None:
    assert why_unread(raw(envelope(**change))) is why


@pytest.mark.parametrize("task_id", [None, "", 7, "x" * 257, "a\x00", "a b", "\ud800", "ä", [], {"a": 1}])
def test_id_is_1_to_256_printable_ascii_characters(task_id: Any) -> None:
    assert why_unread(raw(with_header("id", task_id))) is DropReason.TASK_ID
    assert incoming(with_header("id", "x" * 256)).task_id == "x" * 256


@pytest.mark.parametrize("address", [5, [], {}, True, "warmpool.reply.\ud800", "warmpool.reply." + "x" * 300])
def test_reply_address_is_printable_ascii_or_none(address: Any) -> None:
    message = envelope()
    message["properties"]["reply_to"] = address
    assert why_unread(raw(message)) is DropReason.ADDRESS


def test_message_above_the_limit_is_dropped() -> None:
    message = raw(envelope())
    assert why_unread(message, len(message) - 1) is DropReason.TOO_LARGE
    assert isinstance(read(message, len(message)), IncomingMessage)


def nested(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("levels", [40, 900, 100_000])
def test_deep_message_is_dropped(levels: int) -> None:
    deep = "[" * levels + "]" * levels
    message = json.dumps(envelope(headers={**HEADERS, "x": "here"})).replace('"here"', deep).encode()
    assert why_unread(message, 10_000_000) is DropReason.TOO_DEEP
    inner = base64.b64encode(f"[[{deep}], {{}}, {{}}]".encode()).decode()
    assert why_unread(raw(envelope(body=inner)), 10_000_000) is DropReason.TOO_DEEP


def test_long_flat_list_of_claims_is_read() -> None:
    claims = [f"c-{n}[" for n in range(1000)]
    message = envelope(body=body([], {"claim_ids": claims}, {}))
    assert incoming(message).kwargs == {"claim_ids": claims}
    assert incoming(envelope(body=body([nested(MOST_LEVELS - 5)], {}, {}))).args


@pytest.mark.parametrize("number", ["9" * 21, "9" * 5000, "-" + "9" * 5000, "NaN", "Infinity", "1e999"])
def test_length_of_a_number_is_bounded(number: str) -> None:
    inner = base64.b64encode(f'[[], {{"wait_s": {number}}}, {{}}]'.encode()).decode()
    assert isinstance(incoming(envelope(body=inner)).kwargs["wait_s"], float)


@pytest.mark.parametrize("number", ["9" * 21, "9" * 5000, "-" + "9" * 5000, "NaN", "Infinity", "1e999"])
def test_frame_with_an_unbounded_number_is_dropped(number: str) -> None:
    """The broker keeps it until it is answered, and kombu reads it again from there."""
    frame = json.dumps(envelope(headers={**HEADERS, "x": "here"})).replace('"here"', number)
    assert why_unread(frame.encode()) is DropReason.NOT_JSON


@pytest.mark.parametrize("follower", ["callbacks", "errbacks", "chain", "chord"])
def test_message_with_a_follower_is_refused_and_the_follower_named(follower: str) -> None:
    message = incoming(envelope(body=body([], {}, {follower: [{"task": "pool.retire"}]})))
    assert message.objection.startswith("link: ")


def test_task_of_another_queue_is_refused_and_named() -> None:
    assert incoming(with_header("task", "pool.spawn")).refusal.startswith("task: 'pool.spawn'")


def test_eta_and_expires_are_read_as_times() -> None:
    message = incoming(
        envelope(headers={**HEADERS, "eta": "2031-05-01T12:00:00", "expires": "2031-05-01T12:00:00Z"})
    )
    assert message.eta == message.expires == datetime(2031, 5, 1, 12, tzinfo=UTC)
    assert not message.objection
    for name in ("eta", "expires"):
        for value in ("soon", 7, ["x"], "2031-05-01T12:00:00" + "0" * 300):
            assert incoming(with_header(name, value)).objection.startswith(
                f"{name}: must be an ISO 8601 time"
            )


@pytest.mark.parametrize(
    ("name", "value"),
    [("compression", "application/x-gzip"), ("retries", "many"), ("timelimit", "x"), ("timelimit", [1, "x"])],
)
def test_header_of_an_unsupported_type_is_named(name: str, value: Any) -> None:
    assert incoming(with_header(name, value)).objection.startswith(f"{name}: ")


@pytest.mark.parametrize(
    "option", [{"retries": 1}, {"timelimit": [1, 2]}, {"timelimit": [None, 0.5]}, {"group": "g"}]
)
def test_options_without_effect_here_are_accepted(option: dict[str, Any]) -> None:
    assert not incoming(envelope(headers={**HEADERS, **option})).objection


def test_a_malformed_trace_is_ignored_and_noticed() -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    kept, ignored, none = (
        incoming(with_header("traceparent", value)) for value in (trace, trace + "-", None)
    )
    assert (kept.headers["traceparent"], kept.has_invalid_trace) == (trace, False)
    assert (ignored.headers["traceparent"], ignored.has_invalid_trace, ignored.refusal) == ("", True, "")
    assert not none.has_invalid_trace


def test_text_from_outside_is_cleaned() -> None:
    message = incoming(envelope(headers={**HEADERS, "origin": "a\x00\ud800\n" + "x" * 5000, "argsrepr": 7}))
    assert message.headers["origin"] == "a???" + "x" * 252
    assert message.headers["argsrepr"] == ""
    typed = incoming(with_header("warmpool_auth", {"__type__": [], "__value__": 1}))
    assert typed.headers["warmpool_auth"] == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=200) | JSON.map(raw))
def test_no_incoming_message_raises(message: bytes) -> None:
    assert isinstance(read(message, LIMIT), DropReason)


@given(st.sampled_from(sorted(envelope())), JSON)
def test_a_corrupted_part_of_a_message_raises_nothing(part: str, value: Any) -> None:
    read(raw(envelope(**{part: value})), LIMIT)


def test_simultaneous_stamps_are_sent_in_few_messages() -> None:
    workers = [f"w-{n}" for n in range(20)]
    sent = [[s.arguments["worker_id"], *s.arguments.get("others", ())] for s in stamps(workers)]
    assert [w for message in sent for w in message] == workers
    assert [len(message) for message in sent] == [STAMPS_A_MESSAGE, STAMPS_A_MESSAGE, 4]


def test_stamp_message_of_one_worker_names_no_others() -> None:
    assert stamps(["w-1"]) == [Sending("pool.stamp", {"worker_id": "w-1"})]
