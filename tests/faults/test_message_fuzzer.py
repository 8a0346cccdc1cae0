"""Thousands of hostile messages on every queue of a real pool, with and without signed requests,
beside 17 honest callers of another org: no process or thread ends, nothing of the attacker is
written except valid requests, and no honest answer is lost or late.

`make proof` sends 100,000. `WARMPOOL_TEST_SEED` repeats a failed run.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis
from sqlalchemy import select

from pool.core.signing import OrgKey
from pool.store import schema
from tests.support.honest import Honest, worst
from tests.support.hostile import Attacker, Hostile, Loot
from tests.support.signed import MASTER_KEY, key_of
from tests.support.standing import Standing, drained, passes_go_on, peak_memory, refused_messages
from tests.support.system import EVERYTHING, System
from tests.support.waiting import eventually

LONG = os.environ.get("WARMPOOL_TEST_LONG") == "1"
MESSAGES = 100_000 if LONG else 2_000
SEED = int(os.environ.get("WARMPOOL_TEST_SEED", "20261"))
CALLERS = 16
# One for each caller of the client, for the plain one, and for the attacker: no honest caller waits
# for a worker, so a late answer is the pool's fault.
WORKERS = CALLERS + 2
BURST = 40
# With more messages on the queue, honest callers wait for the attacker's bandwidth and not for the
# pool.
MOST_QUEUED = 200
# `make proof` has the machine to itself; in `make test` four files share its two cores.
LATE_S = 2.0 if LONG else 6.0
# Pause of each caller between two rounds; without it the queues are never empty.
PAUSE_S = 0.25
SHOWN = 5
ATTACKER, HONEST = "attacker", "honest"

pytestmark = pytest.mark.timeout(3600 if LONG else 240)


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzerGround:
    """A running pool and the keys of its two orgs, if requests are signed."""

    system: System
    keys: dict[str, OrgKey] = field(default_factory=dict)


@pytest.fixture(params=["signed", "unsigned"])
def ground(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[FuzzerGround]:
    signed = request.param == "signed"
    url = request.getfixturevalue("postgres").create_database(f"fuzzed_{request.param}")
    settings = {
        "pool": {"signed_requests": signed, "master_key": MASTER_KEY, "max_workers": WORKERS, "hot_idle_ttl_s": 900},
        "profiles": {"default": {"warm_target": WORKERS}},
        "orgs": {"auto_create": False, HONEST: {"hot_idle_floor": WORKERS - 1}, ATTACKER: {"cap": 1}},
    }  # fmt: skip
    with System(tmp_path_factory.mktemp("fuzzed"), url, settings=settings, measured=True) as made:
        for org in (HONEST, ATTACKER):
            made.command("org", "set", org)
        made.run(*EVERYTHING).wait_idle(WORKERS)
        yield FuzzerGround(
            system=made, keys={org: key_of(org) for org in (HONEST, ATTACKER)} if signed else {}
        )


def test_hostile_messages_harm_no_process_no_thread_and_no_other_org(ground: FuzzerGround) -> None:
    system, standing = ground.system, Standing(ground.system)
    key = ground.keys.get(HONEST)
    with Honest(system.redis.url, org=HONEST, key=key, threads=CALLERS, pause_s=PAUSE_S) as honest:
        calm = worst(honest.goes_on(300))
        mark, storm = honest.mark(), Storm(ground, honest)
        try:
            storm.fire(MESSAGES)
            drained(system)
            honest.goes_on(200)
            passes_go_on(system)
            late = [call for call in honest.since(mark) if call[1] > calm + LATE_S]
            assert honest.complaints() == []
            assert late == [], f"the slowest call took {calm:.2f} s before"
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{standing.complaints()}\n{storm}\n{system.tails()}") from exc
        print(
            f"\n{storm.summary()}\nhonest: {_counted(honest, mark)}, at most {worst(honest.since(mark)):.2f} s ({calm:.2f} s before)"
        )
    print({name: f"{peak_memory(part.pid) >> 20} MiB" for name, part in system.parts.items() if part.alive()})
    assert standing.complaints() == [], f"{storm}\n{system.tails()}"
    assert storm.written_by_mistake() == [], storm
    assert refused_messages(system) > 0
    assert system.wrongs() == []


class Storm:
    """Push messages in bursts, as fast as the pool reads them."""

    def __init__(self, ground: FuzzerGround, honest: Honest) -> None:
        self._system, self._honest = ground.system, honest
        self._redis = redis.Redis.from_url(ground.system.redis.url)
        loot = Loot(org=HONEST, addresses=[honest.address])
        self._attacker = Attacker(
            SEED, org=ATTACKER, key=ground.keys.get(ATTACKER), loot=loot, now_s=self._now_s()
        )
        self._kinds: Counter[str] = Counter()
        self._may_write: set[str] = set()
        self._last: deque[Hostile] = deque(maxlen=SHOWN)

    def fire(self, count: int) -> None:
        for number in range(0, count, BURST):
            self._attacker.learns(now_s=self._now_s(), claim_ids=list(self._honest.held))
            with self._redis.pipeline(transaction=False) as pipe:
                for _ in range(min(BURST, count - number)):
                    self._push(pipe, self._attacker.next())
                pipe.execute()
            eventually(lambda: self._redis.llen("acquire") < MOST_QUEUED, within_s=60)
            assert all(part.alive() for part in self._system.parts.values()), "a process has ended"

    def written_by_mistake(self) -> list[str]:
        """Return requests in the table that neither the honest org nor a valid message of the
        attacker made, and orgs that should not exist.
        """
        requests, orgs = schema.requests, schema.orgs
        with self._system.store.read() as tx:
            found = tx.execute(select(requests.c.org, requests.c.request_id)).all()
            names = set(tx.execute(select(orgs.c.id)).scalars())
        wrong = [
            f"{org} {request_id}"
            for org, request_id in found
            if (org == HONEST and "hostile" in request_id)
            or (org != HONEST and request_id not in self._may_write)
        ]
        return wrong + sorted(names - {HONEST, ATTACKER})

    def summary(self) -> str:
        requests = schema.requests
        with self._system.store.read() as tx:
            rows = tx.execute(
                select(requests.c.state, requests.c.reason).where(requests.c.org == ATTACKER)
            ).all()
        outcomes = Counter(f"{state} {reason or ''}".strip() for state, reason in rows)
        return (
            f"seed {SEED}, {self._kinds.total()} messages: {dict(self._kinds)}\n"
            f"refused or dropped {refused_messages(self._system):g}, written as valid {dict(outcomes)}"
        )

    def __str__(self) -> str:
        last = "\n".join(f"  {message}" for message in self._last)
        return f"WARMPOOL_TEST_SEED={SEED}, after {self._kinds.total()} messages; the last ones:\n{last}"

    def _push(self, pipe: redis.client.Pipeline, message: Hostile) -> None:
        pipe.lpush(message.queue, message.raw)
        self._kinds[message.kind] += 1
        self._last.append(message)
        if message.may_write:
            self._may_write.add(message.may_write)

    def _now_s(self) -> float:
        return float(self._redis.time()[0])


def _counted(honest: Honest, mark: int) -> dict[str, int]:
    return dict(Counter(what for what, _ in honest.since(mark)))
