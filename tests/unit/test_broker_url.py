"""The URL of the broker: what each form means, and a sentence for every malformed one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from redis.connection import DefaultParser

from pool.broker import connecting
from pool.broker.outages import Trouble, trouble
from pool.core.brokerurl import InvalidUrl, parse
from pool.core.errors import Refused

parse_error: Callable[[str], Exception] = DefaultParser.parse_error


@pytest.mark.parametrize(
    ("url", "hosts", "path", "master", "tls"),
    [
        ("redis://h", (("h", 6379),), "", "", False),
        ("rediss://u:p@h:7/2", (("h", 7),), "", "", True),
        ("redis://[::1]:7/0", (("::1", 7),), "", "", False),
        ("unix:///run/redis.sock", (), "/run/redis.sock", "", False),
        ("redis+socket:///run/redis.sock?virtual_host=2", (), "/run/redis.sock", "", False),
        ("sentinel://a,b:7/warm", (("a", 26379), ("b", 7)), "", "warm", False),
        ("sentinels://u:p@a,b,c/warm/2", (("a", 26379), ("b", 26379), ("c", 26379)), "", "warm", True),
    ],
)
def test_each_form_of_the_url_names_its_place(
    url: str, hosts: tuple[tuple[str, int], ...], path: str, master: str, tls: bool
) -> None:
    found = parse(url)
    assert (found.hosts, found.path, found.master, found.tls) == (hosts, path, master, tls)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:p%40ss@h:7/2?health_check_interval=9",
        "unix://me:p%40ss@/run/redis.sock?db=2&health_check_interval=9",
        "redis+socket://me:p%40ss@/run/redis.sock?virtual_host=2&health_check_interval=9",
        "sentinel://me:p%40ss@a,b/warm/2?health_check_interval=9&sentinel_password=own",
    ],
)
def test_credentials_database_and_options_reach_the_connection(url: str) -> None:
    made = connecting.pool(url, socket_keepalive=True).connection_kwargs
    found = [made[name] for name in ("username", "password", "db", "health_check_interval")]
    assert found == ["me", "p@ss", 2, 9]


def test_sentinels_get_their_own_credentials_and_the_same_certificates() -> None:
    url = "sentinels://me:pw@a/warm?sentinel_username=watcher&sentinel_password=own&ssl_ca_certs=/ca"
    found = connecting.sentinel_arguments(parse(url), connecting.pool(url).connection_kwargs)
    assert (found["username"], found["password"], found["ssl_ca_certs"]) == ("watcher", "own", "/ca")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("amqp://h", "it must be redis://HOST:PORT/N, rediss://"),
        ("localhost:6379", "it must be redis://"),
        ("redis://", "it must be redis://"),
        ("redis://h:port", "it must be redis://"),
        ("redis://h:0", "it must be redis://"),
        ("redis://[::1", "it must be redis://"),
        ("redis://h/first", "it must be redis://"),
        ("redis://h/0/1", "it must be redis://"),
        ("unix://", "it must be redis://"),
        ("redis://:pa/ss@h", "as %2F %3F %23 %40"),
        ("redis://a,b", "the URL of one server; for several hosts use sentinel://"),
        ("sentinel://a,b", "with the name of the primary as MASTER"),
        ("sentinel://a,b/", "with the name of the primary as MASTER"),
        ("redis+cluster://a", "a Redis Cluster is not supported"),
        ("redis://h?colour=red", "valid options: .*colour"),
        ("redis://h?socket_timeout=soon", "valid options: .*socket_timeout"),
        ("rediss://h?ssl_cert_reqs=perhaps", "valid options: .*perhaps"),
        ("redis://h?sentinel_password=own", "valid options: .*sentinel_password"),
    ],
)
def test_malformed_url_is_refused_with_what_is_allowed(url: str, sentence: str) -> None:
    with pytest.raises(InvalidUrl, match=f"invalid: url is .*{sentence}") as caught:
        connecting.pool(url)
    assert isinstance(caught.value, Refused)


@pytest.mark.parametrize(
    "url", ["redis://me:hunter2@[::1", "redis://me:hun/ter2@h", "redis://h?password=hunter2&x=1"]
)
def test_refusal_of_a_url_has_no_password(url: str) -> None:
    with pytest.raises(InvalidUrl) as caught:
        connecting.pool(url)
    assert "hun" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("WRONGPASS invalid username-password pair or user is disabled.", Trouble.CREDENTIALS),
        ("NOAUTH Authentication required.", Trouble.CREDENTIALS),
        ("NOPERM User acme has no permissions to run the 'lpush' command", Trouble.RIGHTS),
        ("MOVED 7000 10.0.0.1:6379", Trouble.CLUSTER),
        ("CROSSSLOT Keys in request don't hash to the same slot", Trouble.CLUSTER),
        ("ERR DB index is out of range", Trouble.DATABASE),
        ("READONLY You can't write against a read only replica.", Trouble.OUTAGE),
        ("LOADING Redis is loading the dataset in memory", Trouble.OUTAGE),
    ],
)
def test_each_error_of_redis_has_its_kind(text: str, kind: Trouble) -> None:
    assert trouble(parse_error(text)) is kind


def test_a_primary_that_no_sentinel_monitors_is_no_outage() -> None:
    answers = connecting.Answers("x")
    assert answers.take(None) is None
    assert trouble(answers.none_found()) is Trouble.MASTER
    answers.failed(OSError("refused"))
    assert trouble(answers.none_found()) is Trouble.OUTAGE
    answers.failed(parse_error("WRONGPASS invalid username-password pair"))
    assert trouble(answers.none_found()) is Trouble.CREDENTIALS
