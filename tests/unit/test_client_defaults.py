"""What the client takes from its environment, and the words of answers as types."""

from __future__ import annotations

from typing import get_args

import pytest

from pool.client import AsyncPool, InvalidInput, Pool, RefusalReason, ReleaseCondition, WorkerSource, defaults
from pool.config.environment import variable
from pool.core.names import ENV_BROKER_URL
from pool.core.signing import OrgKey
from pool.core.states import Condition, Reason, Source


def test_the_url_of_the_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_BROKER_URL, "redis://from-the-environment")
    assert defaults.broker_url(None) == "redis://from-the-environment"
    assert defaults.broker_url("redis://passed") == "redis://passed"


@pytest.mark.parametrize("kind", [Pool, AsyncPool])
def test_a_missing_url_is_named(kind: type[Pool | AsyncPool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_BROKER_URL, raising=False)
    with pytest.raises(InvalidInput, match=r"^invalid: url is missing: .*WARMPOOL_BROKER_URL$"):
        kind()


def test_client_and_server_read_the_same_variable() -> None:
    assert variable("broker_url") == ENV_BROKER_URL


def test_the_org_of_the_key_is_the_default() -> None:
    key = OrgKey(org="acme", version=1, secret="s")
    assert defaults.org(None, lambda: key) == "acme"
    assert defaults.org("bolt", lambda: key) == "bolt", "the pool decides whether the key may do that"


def test_a_missing_org_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"^invalid: org is missing: .*WARMPOOL_ORG_KEY"):
        defaults.org(None, None)


def test_the_types_have_the_words_of_the_contract() -> None:
    assert get_args(RefusalReason) == tuple(map(str, Reason))
    assert sorted(get_args(WorkerSource)) == sorted(map(str, Source))
    assert get_args(ReleaseCondition) == tuple(map(str, Condition))
