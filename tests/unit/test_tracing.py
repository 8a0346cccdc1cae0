"""The trace of a request: what is valid, where the client takes it from, and what is stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace as api
from opentelemetry.sdk.trace import TracerProvider

from pool.client.messages import Message
from pool.client.testing import FakePool
from pool.client.tracing import traceparent
from pool.core.records import ReplyTo
from pool.core.tracecontext import of_span, valid

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = TRACE.replace("4bf9", "5af9")


@pytest.mark.parametrize("good", [TRACE, TRACE.replace("-01", "-00"), "01" + TRACE[2:]])
def test_a_traceparent_of_the_standard_is_valid(good: str) -> None:
    assert valid(good) == good


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        TRACE.upper(),
        TRACE + "-x",
        TRACE + "\n",
        " " + TRACE,
        TRACE[:-1],
        "ff" + TRACE[2:],
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-" + "0" * 16 + "-01",
        TRACE.replace("4", "\u0664", 1),
        TRACE.replace("4bf9", "\x00bf9"),
        "x" * 100_000,
        7,
        None,
        [TRACE],
        {"a": TRACE},
    ],
)
def test_any_other_value_is_ignored(wrong: object) -> None:
    assert valid(wrong) == ""


@given(st.integers(0, 2**128 - 1), st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_a_span_with_valid_ids_has_a_valid_traceparent(trace_id: int, span_id: int, flags: int) -> None:
    made = of_span(trace_id, span_id, flags)
    assert bool(made) == bool(trace_id and span_id)
    assert valid(made) == made


def test_a_request_belongs_to_the_current_span_unless_its_caller_names_a_trace() -> None:
    assert traceparent() == ""
    with TracerProvider().get_tracer("shop").start_as_current_span("order") as span:
        ids = span.get_span_context()
        assert traceparent() == of_span(ids.trace_id, ids.span_id, ids.trace_flags) != ""
        assert traceparent(TRACE) == TRACE
        assert traceparent("not a trace") == ""
    assert traceparent() == ""


def test_calls_to_a_worker_belong_to_the_current_span_and_otherwise_to_the_acquire() -> None:
    with FakePool() as pool, pool.acquire("acme", traceparent=TRACE) as worker:
        assert worker.auth["traceparent"] == TRACE
        with api.use_span(TracerProvider().get_tracer("shop").start_span("order")) as span:
            assert f"{span.get_span_context().span_id:016x}" in worker.auth["traceparent"]
    with FakePool() as pool, pool.acquire("acme") as worker:
        assert "traceparent" not in worker.auth


def test_the_message_has_the_trace_in_its_headers_and_none_if_there_is_none() -> None:
    fields = {"task": "pool.acquire", "kwargs": {}, "task_id": "t", "origin": "o"}
    assert json.loads(Message(**fields, traceparent=TRACE).encoded("d"))["headers"]["traceparent"] == TRACE  # type: ignore[arg-type]
    assert "traceparent" not in json.loads(Message(**fields).encoded("d"))["headers"]  # type: ignore[arg-type]


@pytest.mark.parametrize("origin", ["", "shop:1@here"])
@pytest.mark.parametrize("trace", ["", TRACE])
def test_a_stored_trace_is_read_again_also_from_rows_of_other_versions(origin: str, trace: str) -> None:
    to = ReplyTo(task_id="t", address="a", origin=origin, traceparent=trace)
    assert ReplyTo.of(*to.stored()) == to
    assert ReplyTo.of("t", "a", origin, trace, "of a later version") == to
    assert len(ReplyTo(task_id="t", address="a").stored()) == 2
