"""The shipped ACL file on a real server: what each user may do and what is refused.
`test_running.py` shows that the pool works with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from pool.broker import acl
from pool.core.errors import InvalidInput
from pool.core.ids import RandomIds
from tests.support.helm import CHART, ROOT, named, rendered, secret_values
from tests.support.redis_server import RedisServer

USERS = ("control", "producer", "flower")

# The commands that each user's work needs.
ALLOWED = {
    "control": [
        "SET warmpool.lock.reap token NX PX 1000",
        "EVAL return(redis.call('get',KEYS[1])) 1 warmpool.lock.reap", "LPUSH fleet m",
        "BRPOP passes 0.01", "HSET unacked tag m", "ZADD unacked_index 1 tag",
        "SADD _kombu.binding.acquire x",
        "SETEX celery-task-meta-1 60 {}", "PUBLISH celery-task-meta-1 {}", "RPUSH warmpool.reply.a.1 {}",
        "PUBLISH /0.celeryev/worker.heartbeat {}",
        "PUBLISH /0.celery.pidbox {}", "INFO server", "LLEN acquire", "TIME", "PING",
        "EVAL return(redis.call('lpop',KEYS[1])) 1 acquire",
        "EVAL return(redis.call('hset',KEYS[1],'t','m')) 1 unacked",
    ],
    "producer": [
        "LPUSH acquire m", "BLPOP warmpool.reply.svc.1 0.01", "RPUSH warmpool.reply.svc.1 {}",
        "EXPIRE warmpool.reply.svc.1 60",
        "GET celery-task-meta-1", "CLIENT SETNAME svc", "TIME", "PING",
    ],
    "flower": [
        "SADD _kombu.binding.celeryev x", "LLEN acquire", "LLEN fleet", "TIME", "INFO server", "PING",
    ],
}  # fmt: skip

# What an intruder with that password would try.
REFUSED = {
    "control": [
        "FLUSHALL", "CONFIG GET requirepass", "CONFIG SET dir /tmp", "KEYS *", "ACL LIST", "ACL SETUSER x on",
        "SHUTDOWN",
        "MONITOR", "CLIENT KILL ID 1", "REPLICAOF no one", "MODULE LIST", "SCRIPT FLUSH", "FUNCTION FLUSH",
        "SET another.program 1", "GET another.program",
        "PUBLISH another.channel x", "SAVE",
    ],
    "producer": [
        "EXPIRE acquire 0", "RPUSH acquire m", "BLPOP acquire 0.01", "LPOP acquire",
        "LPUSH warmpool.reply.svc.1 {}", "RPUSH celery-task-meta-1 {}",
        "RPOP acquire", "BRPOP acquire 0.01", "LRANGE acquire 0 -1", "LLEN acquire", "DEL acquire",
        "LPUSH fleet m", "LPUSH bind m", "LPUSH passes m",
        "SET celery-task-meta-1 {}", "SADD _kombu.binding.acquire x", "PUBLISH /0.celery.pidbox {}",
        "PUBLISH celery-task-meta-1 {}",
        "GET warmpool.nonce.acme:1", "SET warmpool.nonce.acme:1 open", "DEL warmpool.nonce.acme:1",
        "LPUSH acquire.general m",
        "GET warmpool.lock.reap", "DEL warmpool.lock.reap", "SET warmpool.lock.reap x", "HGETALL unacked",
        "KEYS *", "SCAN 0", "RANDOMKEY",
        "EVAL return(1) 0", "FLUSHALL", "CONFIG GET *", "INFO", "ACL LIST", "CLIENT LIST", "MONITOR",
        "MIGRATE h 1 k 0 1", "OBJECT HELP",
        "SUBSCRIBE /0.celeryev/x", "PSUBSCRIBE celery-task-meta-*",
        "RENAME warmpool.reply.a warmpool.reply.b",
    ],
    "flower": [
        "LPUSH acquire m", "RPOP acquire", "LPUSH fleet m", "GET celery-task-meta-1",
        "BLPOP warmpool.reply.svc.1 0.01", "PUBLISH /0.celery.pidbox {}",
        "DEL warmpool.lock.reap", "HGETALL unacked", "SADD _kombu.binding.acquire x", "KEYS *", "SCAN 0",
        "FLUSHALL", "CONFIG GET *", "ACL LIST", "CLIENT LIST",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def secret() -> dict[str, str]:
    return secret_values(named(rendered("trial"), "Secret", "wp-warmpool"))


@pytest.fixture(scope="module")
def server(secret: dict[str, str]) -> Iterator[RedisServer]:
    with RedisServer(acl=secret["users.acl"]) as server:
        yield server


@pytest.fixture
def client(
    server: RedisServer, secret: dict[str, str], request: pytest.FixtureRequest
) -> Iterator[redis.Redis]:
    url = server.url_of(request.param, secret[f"redis-{request.param}-password"])
    with redis.Redis.from_url(url, retry=None) as client:
        yield client


@pytest.mark.parametrize("client", USERS, indirect=True)
def test_each_user_may_do_what_its_work_needs(client: redis.Redis, request: pytest.FixtureRequest) -> None:
    user = request.node.callspec.params["client"]
    for line in ALLOWED[user]:
        client.execute_command(*line.split(" "))


@pytest.mark.parametrize("client", USERS, indirect=True)
def test_each_user_is_refused_everything_else(client: redis.Redis, request: pytest.FixtureRequest) -> None:
    user = request.node.callspec.params["client"]
    went_through = []
    for line in REFUSED[user]:
        try:
            client.execute_command(*line.split(" "))
        except redis.exceptions.NoPermissionError:
            continue
        except redis.exceptions.ResponseError as exc:
            went_through.append(f"{line}: {exc}")
        else:
            went_through.append(line)
    assert went_through == []


def test_login_without_a_password_is_refused(server: RedisServer) -> None:
    for url in (server.url, server.url_of("producer", RandomIds().token()), server.url_of("default", "")):
        with (
            redis.Redis.from_url(url, retry=None) as client,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            client.ping()


def test_acl_file_has_passwords_only_as_hashes(secret: dict[str, str]) -> None:
    for user in USERS:
        assert secret[f"redis-{user}-password"] not in secret["users.acl"]
        assert f"user {user} on #" in secret["users.acl"]


def test_the_default_user_is_off_and_still_replays_transactions(secret: dict[str, str]) -> None:
    """Valkey 8.1 replays its append-only file as the default user: without permissions, what MULTI
    and EXEC wrote is lost at a restart.
    """
    assert secret["users.acl"].splitlines()[0] == "user default off ~* &* +@all"
    flat = (CHART / "files" / "users-6.2.acl").read_text()
    assert flat.splitlines()[0] == "user default off ~* &* +@all"
    with RedisServer(appendonly=True, acl=secret["users.acl"]) as server:
        url = server.url_of("control", secret["redis-control-password"])
        with redis.Redis.from_url(url) as client, client.pipeline(transaction=True) as pipe:
            pipe.hset("unacked", "tag", "m").zadd("unacked_index", {"tag": 1}).execute()
        server.restart()
        with redis.Redis.from_url(url) as client:
            assert client.hgetall("unacked") == {b"tag": b"m"}
            assert client.zcard("unacked_index") == 1


def test_acl_line_that_the_command_prints_for_an_org_lets_it_log_in() -> None:
    """The example with a queue for each org; its password is in no Secret of the chart."""
    text = secret_values(named(rendered("strict"), "Secret", "wp-warmpool"))["users.acl"]
    assert acl.line("acme", acl.org_rules("acme"), "password") in text.splitlines()
    with (
        RedisServer(acl=text) as server,
        redis.Redis.from_url(server.url_of("acme", "password"), retry=None) as client,
    ):
        assert client.lpush("acquire.acme.", "m") == 1
        for refused in ("LPUSH acquire m", "EXPIRE acquire.acme. 0", "RPUSH acquire.acme. m"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*refused.split(" "))


@pytest.mark.parametrize("user", sorted(acl.RESERVED_USERS))
def test_acl_line_for_a_user_name_of_the_pool_is_refused(user: str, tmp_path: Path) -> None:
    """It would give the control plane's user a producer's permissions, or enable the default user."""
    for words in ((user,), ("acme", "--user", user)):
        command = [sys.executable, "-m", "pool.ops.cli", "org", "acl", *words]
        refused = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
        )
        assert (refused.returncode, refused.stdout) == (1, ""), words
        assert f"user {user} is one of the pool's own" in refused.stderr


def test_acl_line_for_a_user_name_that_adds_rules_is_refused() -> None:
    for user in ("svc on nopass +@all ~*", "svc\nuser default on nopass +@all ~*", "", "svc#"):
        with pytest.raises(InvalidInput, match="user"):
            acl.checked_user(user)
