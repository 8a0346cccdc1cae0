"""The task contract with any input: a validated value, or a refusal that names the field. Never
anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pool.core.contract import (
    LONGEST_TTL_S,
    MAX_RENEWALS,
    Acquire,
    Cancel,
    Granted,
    RefusedAnswer,
    Release,
    Renew,
    bound,
    instant,
)
from pool.core.errors import InvalidInput
from pool.core.ids import OrgId, ProfileName
from pool.core.states import Condition, Reason, Source

ACQUIRE = ("org", "profile", "request_id", "lease_s", "ttl_s", "wait_s")

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
# Near the bounds and inside them, where most mistakes are.
likely = st.sampled_from(
    ["acme", "default", "clean", "tainted", "", " ", "a" * 128, "a" * 129, "A_b", "a\nb", "a\x00", "é", 4, 5, 3600]
) | st.integers(-2, 3602) | st.floats(-2, 3602).map(float)  # fmt: skip
values = likely | anything


def parsed(parse: Callable[[], Any], *fields: str) -> Any:
    """Return the validated value, or None after a refusal that names one of the fields."""
    try:
        return parse()
    except InvalidInput as exc:
        refusal = exc
    assert refusal.reason == "invalid"
    assert refusal.field in fields
    assert refusal.detail.startswith(f"{refusal.field} ")
    assert len(refusal.detail) < 400
    return None


def is_text(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= 256 and "\n" not in value and "\x00" not in value


@given(st.dictionaries(st.sampled_from(ACQUIRE), values))
@example({"org": "acme", "lease_s": float("inf")})
@example({"org": "acme", "wait_s": float("-inf")})
@example({"org": "acme", "ttl_s": float("nan")})
@example({"org": "acme", "lease_s": 10**5000})
@example({"org": [10**5000]})
def test_an_acquire_is_within_its_bounds_or_invalid(arguments: dict[str, Any]) -> None:
    asked = parsed(lambda: Acquire.parse(arguments, task_id="task"), *ACQUIRE)
    if asked is None:
        return
    assert type(asked.lease_s) is int
    assert 5 <= asked.lease_s <= 3600
    assert type(asked.wait_s) is int
    assert 0 <= asked.wait_s <= 3600
    assert asked.ttl_s is None or (type(asked.ttl_s) is int and 0 <= asked.ttl_s <= LONGEST_TTL_S)
    assert 1 <= len(asked.org) <= 128
    assert asked.org.isascii()
    assert 1 <= len(asked.profile) <= 63
    assert is_text(asked.request_id)
    for name, value in arguments.items():
        expected = value if name != "request_id" or value is not None else "task"
        if name == "ttl_s" and value is not None:
            expected = min(value, LONGEST_TTL_S)
        assert getattr(asked, name) == expected


@given(values)
def test_a_renewal_is_a_list_of_ids_or_invalid(claim_ids: Any) -> None:
    asked = parsed(lambda: Renew.parse(claim_ids), "claim_ids")
    if asked is not None:
        assert all(map(is_text, asked.claim_ids))
        assert list(asked.claim_ids) == list(dict.fromkeys(claim_ids))


@given(st.lists(values, max_size=5))
def test_one_bad_id_makes_a_renewal_invalid(others: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="claim_ids"):
        Renew.parse([*others, {"c": 1}])


@given(values, values)
def test_a_release_is_of_a_claim_in_a_known_condition_or_invalid(claim_id: Any, condition: Any) -> None:
    asked = parsed(lambda: Release.parse(claim_id, condition), "claim_id", "condition")
    if asked is not None:
        assert asked.claim_id == claim_id
        assert is_text(asked.claim_id)
        assert asked.condition in {Condition.CLEAN, Condition.TAINTED}


@given(values, values)
def test_a_cancellation_names_org_and_request_or_is_invalid(org: Any, request_id: Any) -> None:
    asked = parsed(lambda: Cancel.parse(org, request_id), "org", "request_id")
    if asked is not None:
        assert (asked.org, asked.request_id) == (org, request_id)
        assert is_text(asked.request_id)


@given(
    st.lists(values, max_size=8),
    st.dictionaries(st.sampled_from(ACQUIRE) | st.text(max_size=100), values, max_size=8)
)  # fmt: skip
def test_positional_and_keyword_arguments_are_bound_by_name(args: list[Any], kwargs: dict[str, Any]) -> None:
    given_twice = set(ACQUIRE[: len(args)]) & set(kwargs)
    wrong = len(args) > len(ACQUIRE) or given_twice or set(kwargs) - set(ACQUIRE)
    fields = ("arguments", *ACQUIRE, *(k[:80] for k in kwargs))
    found = parsed(lambda: bound(ACQUIRE, args, kwargs), *fields)
    if wrong:
        assert found is None
    else:
        assert found is not None
        assert found.keys() == set(ACQUIRE[: len(args)]) | set(kwargs)
        assert all(found[n] is v for n, v in zip(ACQUIRE, args, strict=False))


def test_ttl_has_a_lower_bound_only() -> None:
    def asked(value: Any) -> Any:
        found = parsed(lambda: Acquire.parse({"org": "acme", "ttl_s": value}, task_id="t"), "ttl_s")
        return "invalid" if found is None else found.ttl_s

    assert [asked(v) for v in (0, 5.0, 10**9, 10**30)] == [0, 5, 10**9, LONGEST_TTL_S]
    wrong: tuple[object, ...] = (-1, -(10**30), 0.5, True, "5", [5], {}, float("inf"), float("nan"))
    assert [asked(v) for v in wrong] == ["invalid"] * len(wrong)


@pytest.mark.parametrize(("field", "least", "most"), [("lease_s", 5, 3600), ("wait_s", 0, 3600)])
def test_a_value_at_its_bound_is_allowed_and_one_beyond_is_not(field: str, least: int, most: int) -> None:
    def asked(value: Any) -> Any:
        arguments = {"org": "acme", field: value}
        found = parsed(lambda: Acquire.parse(arguments, task_id="t"), field)
        return "invalid" if found is None else getattr(found, field)

    assert [asked(v) for v in (least - 1, least, most, most + 1)] == ["invalid", least, most, "invalid"]
    wrong: tuple[object, ...] = (least + 0.5, True, str(least), [least], {})
    assert [asked(v) for v in wrong] == ["invalid"] * 5
    assert asked(float(most)) == most


def test_deeply_nested_lists_are_invalid() -> None:
    value: Any = 0
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidInput, match="org must be"):
        Cancel.parse(value, "r")


def test_omitted_arguments_have_their_defaults() -> None:
    asked = Acquire.parse({"org": "acme"}, task_id="task-1")
    assert asked == Acquire(
        org=OrgId("acme"),
        profile=ProfileName("default"),
        request_id="task-1",
        lease_s=30,
        ttl_s=None,
        wait_s=0,
    )


def test_a_renewal_takes_ten_thousand_claims_and_no_more() -> None:
    assert len(Renew.parse([f"c-{n}" for n in range(MAX_RENEWALS)]).claim_ids) == MAX_RENEWALS
    with pytest.raises(InvalidInput, match="at most 10000"):
        Renew.parse([f"c-{n}" for n in range(MAX_RENEWALS + 1)])


def test_a_claim_named_twice_is_renewed_once() -> None:
    assert Renew.parse(["c-1", "c-2", "c-1"]).claim_ids == ("c-1", "c-2")


def test_answers_are_json_with_exactly_the_promised_fields() -> None:
    at = datetime(2030, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
    granted = Granted(
        claim_id="c-1",
        worker_id="w-1",
        epoch=1,
        pod="w-1",
        endpoint="http://w-1",
        token="secret",
        lease_expires_at=at,
        source=Source.WARM,
    )
    assert json.loads(json.dumps(granted.as_dict())) == {
        "outcome": "granted",
        "claim_id": "c-1",
        "worker_id": "w-1",
        "epoch": 1,
        "pod": "w-1",
        "endpoint": "http://w-1",
        "token": "secret",
        "lease_expires_at": "2030-01-01T12:00:00.123Z",
        "source": "warm",
    }
    assert replace(granted, ttl_s=600).as_dict() == {**granted.as_dict(), "ttl_s": 600}
    refused = RefusedAnswer(reason=Reason.ORG_CAP, detail="full", retry_after_s=1.0)
    assert json.loads(json.dumps(refused.as_dict())) == {
        "outcome": "refused",
        "reason": "org_cap",
        "retry_after_s": 1.0,
        "detail": "full",
    }


def test_a_token_is_not_shown_in_logs() -> None:
    assert "secret" not in repr(
        Granted(
            claim_id="c",
            worker_id="w",
            epoch=1,
            pod="w",
            endpoint="e",
            token="secret",
            lease_expires_at=datetime(2030, 1, 1, tzinfo=UTC),
            source=Source.WARM,
        )
    )


def test_an_instant_is_utc_with_milliseconds() -> None:
    assert instant(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2030-01-02T03:04:05.000Z"
