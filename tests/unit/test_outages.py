"""Which refusals of Redis are an outage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.connection import DefaultParser
from redis.exceptions import ResponseError

from pool.broker.outages import is_outage

parse_error: Callable[[str], ResponseError] = DefaultParser.parse_error

SCRIPT = "ERR Error running script (call to f_1): @user_script:1: @user_script: 1:"


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down",
        "CLUSTERDOWN The cluster is down",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "MISCONF Redis is configured to save RDB snapshots",
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "BUSY Redis is busy running a script.",
        "EXECABORT Transaction discarded because of previous errors.",
        f"{SCRIPT} -READONLY You can't write against a read only replica.",
        f"{SCRIPT} -OOM command not allowed",
    ],
)
def test_temporary_refusal_is_an_outage(text: str) -> None:
    assert is_outage(parse_error(text))


@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "NOPERM this user has no permissions to run the 'flushall' command",
        "ERR unknown command 'X'",
        f"{SCRIPT} Script attempted to access nonexistent global variable",
    ],
)
def test_wrong_command_is_no_outage(text: str) -> None:
    assert not is_outage(parse_error(text))
