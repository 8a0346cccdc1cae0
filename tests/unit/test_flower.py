"""Flower shows no secret and commands no worker."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import Celery

from pool.core.errors import PoolError
from tasks.flower.display import shown
from tasks.flower.readonly import ReadOnlyControl


def test_a_task_is_shown_without_secrets_in_any_field() -> None:
    fields = ("args", "kwargs", "result", "exception", "traceback")
    task = SimpleNamespace(**dict.fromkeys(fields, "{'token': 'abc', 'org': 'acme'}"), retries=3)
    key, alone = shown(("id", task))
    assert key == "id"
    assert {getattr(alone, field) for field in fields} == {"{'token': '***', 'org': 'acme'}"}
    assert (alone.retries, task.args) == (3, "{'token': 'abc', 'org': 'acme'}")


def test_a_task_without_arguments_is_shown_as_it_is() -> None:
    assert vars(shown(SimpleNamespace(args=None, result=7))) == {"args": None, "result": 7}


def test_flower_sends_no_command_to_workers() -> None:
    with Celery("flower", set_as_current=False) as app:
        control = ReadOnlyControl(app)
        for command in ("shutdown", "revoke", "pool_shrink", "rate_limit"):
            with pytest.raises(PoolError, match="read-only"):
                control.broadcast(command)
        assert control.broadcast("ping", reply=True) == []
