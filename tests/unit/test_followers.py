"""What may follow an answer, what it becomes, and what is refused."""

from __future__ import annotations

import json
import random
from base64 import b64decode
from typing import Any

import pytest
from celery import Celery

from pool.core.records import ReplyTo
from tasks.lane.followers import MOST, MOST_BYTES, Followers, Unfit, followers
from tasks.lane.following import Following
from tasks.lane.messages import IncomingMessage, read
from tests.support.hostile import INTERNAL_TASKS
from tests.support.hostile_draft import FOREIGN, Draft, canvas, follower, hostile_followers
from tests.unit.test_incoming_messages import LIMIT

ALLOWED = ("celery", "billing")
GRANTED = {"outcome": "granted", "claim_id": "c-1", "token": "secret"}


def given(**embed: Any) -> Followers:
    found = followers(embed, {"group": "g-1", "group_index": 0}, "tag-1")
    assert found is not None
    return found


def plan(found: Followers, state: str = "SUCCESS", result: Any = GRANTED) -> dict[str, Any]:
    """Return the plan that Redis gets."""
    app = Celery("test", backend="redis://", set_as_current=False)
    [(_, _, _, text)] = Following(app, ALLOWED).commands("t-1", found.text, state, result, "granted")
    return dict(json.loads(text))


def sent(found: Followers, state: str = "SUCCESS") -> list[tuple[str, dict[str, Any], Any]]:
    """Return the queue, the headers and the body of each message that follows."""
    return [
        (queue, json.loads(text)["headers"], json.loads(b64decode(json.loads(text)["body"])))
        for name, queue, text, *_ in plan(found, state)["commands"]
        if name == "LPUSH"
    ]


def test_a_callback_gets_the_answer_and_the_id_that_its_caller_gave() -> None:
    work = {**follower("shop.work", task_id="w-1", queue="billing"), "args": [1], "immutable": False}
    [(queue, headers, body)] = sent(given(callbacks=[work]))
    assert (queue, headers["id"], headers["parent_id"]) == ("billing", "w-1", "t-1")
    assert body[:2] == [[GRANTED, 1], {}]
    assert "secret" not in headers["argsrepr"]


def test_an_id_is_derived_from_the_call_and_the_place() -> None:
    many = given(callbacks=[follower("shop.work"), follower("shop.work")])
    ids = [headers["id"] for _, headers, _ in sent(many)]
    assert ids == [headers["id"] for _, headers, _ in sent(many)]
    assert len(set(ids)) == 2


def test_the_rest_of_a_chain_goes_along() -> None:
    last, first = follower("shop.last", task_id="l"), follower("shop.first", task_id="f")
    [(_, headers, body)] = sent(given(chain=[last, first]))
    assert headers["id"] == "f"
    assert [each["task"] for each in body[2]["chain"]] == ["shop.last"]


def test_a_failure_calls_errbacks_with_the_id_and_ends_the_chain() -> None:
    found = given(
        errbacks=[{**follower("shop.failed"), "immutable": False}], chain=[follower("shop.work", task_id="w")]
    )
    [(_, headers, body)] = sent(found, "FAILURE")
    assert (headers["task"], body[0]) == ("shop.failed", ["t-1"])
    assert "celery-task-meta-w" in [command[1] for command in plan(found, "FAILURE")["commands"]]
    assert [headers["task"] for _, headers, _ in sent(found)] == ["shop.work"]


def test_tasks_of_callers_go_to_the_queue_of_callers_whatever_they_name() -> None:
    found = given(callbacks=[follower("pool.release", queue="fleet")])
    assert found.objection(ALLOWED) == ""
    assert [queue for queue, *_ in sent(found)] == ["acquire"]


@pytest.mark.parametrize("queue", FOREIGN)
def test_queues_that_are_not_allowed_are_refused_at_any_depth(queue: Any) -> None:
    """If the refusal at the entry fails, the one before sending holds."""
    named = {**follower("shop.work"), "options": {"queue": queue}}
    for work in (
        named,
        canvas("group", named),
        follower("shop.work", link=[named]),
        {**follower("x"), "args": [named]},
    ):
        try:
            found = given(callbacks=[work])
        except Unfit:
            continue
        assert "follower_queues" in found.objection(ALLOWED)
    if isinstance(queue, str) and queue:
        text = json.dumps({"callbacks": [named], "tag": "x"})
        app = Celery("test", backend="redis://", set_as_current=False)
        assert Following(app, ALLOWED).commands("t-1", text, "SUCCESS", GRANTED, "") == []


@pytest.mark.parametrize("task", INTERNAL_TASKS)
def test_tasks_of_the_control_plane_are_refused_at_any_depth(task: str) -> None:
    own = follower(task)
    for work in (
        own, canvas("chain", follower("x"), own), canvas("chord", follower("x"), own), follower("x", link=[own]),
        follower("x", chord=own), {**follower("x"), "kwargs": {"a": [own]}},
    ):  # fmt: skip
        with pytest.raises(Unfit, match="control plane"):
            given(callbacks=[work])
    text = json.dumps({"callbacks": [own], "tag": "x"})
    app = Celery("test", backend="redis://", set_as_current=False)
    assert Following(app, ALLOWED).commands("t-1", text, "SUCCESS", GRANTED, "") == []


def test_number_and_bytes_are_bounded() -> None:
    assert len(sent(given(callbacks=[follower("x")] * MOST))) == MOST
    with pytest.raises(Unfit, match="tasks follow"):
        given(callbacks=[follower("x")] * (MOST + 1))
    with pytest.raises(Unfit, match="bytes"):
        given(callbacks=[{**follower("x"), "args": ["y" * MOST_BYTES]}])
    body = follower("x", shadow="y" * 200)
    many = {
        **canvas("chord", *[follower("x")] * 40),
        "kwargs": {"header": [follower("x")] * 40, "body": {**body, "args": ["z" * 9000]}},
    }
    with pytest.raises(Unfit, match="too large a body"):
        given(callbacks=[many])


@pytest.mark.parametrize("seed", range(60))
def test_hostile_followers_are_refused_and_raise_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    for kind in ("callbacks", "errbacks", "chain", "chord"):
        for each in hostile_followers(chance.choice(INTERNAL_TASKS), chance):
            draft = Draft(task="pool.acquire", task_id="t", kwargs={"org": "a"})
            draft.embed[kind] = each[0] if kind == "chord" else each
            message = read(draft.raw("tag"), LIMIT)
            if isinstance(message, IncomingMessage) and message.followers is not None:
                is_one_of_many = kind == "chord" and len(each) > 1
                assert is_one_of_many or message.followers.objection(ALLOWED), (kind, each)


def test_nothing_is_sent_if_no_queue_is_allowed() -> None:
    found = given(callbacks=[follower("shop.work")])
    assert "follower_queues is empty" in found.objection(())
    app = Celery("test", backend="redis://", set_as_current=False)
    assert Following(app, ()).commands("t-1", found.text, "SUCCESS", GRANTED, "") == []


def test_followers_are_stored_where_the_previous_version_reads_past_them() -> None:
    to = ReplyTo(task_id="t", address="a", origin="o", followers='{"chain":[]}')
    assert ReplyTo.of(*to.stored()) == to
    task_id, address, _ = to.stored()
    assert (task_id, address) == ("t", "a")
    assert ReplyTo(task_id="t", origin="o").stored() == ["t", "", "o"]
