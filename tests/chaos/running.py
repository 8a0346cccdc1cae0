"""One chaos run from start to result."""

from __future__ import annotations

import heapq
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select

from pool.core.errors import PoolError
from pool.core.periods import PERIODS_S
from pool.core.states import LIVE, State
from pool.store import passes, schema
from tests.chaos import checker, history
from tests.chaos.checker import ClaimRow, History, RequestRow
from tests.chaos.faults import Clients, Faults
from tests.chaos.history import ClaimHold, HistoryEvent
from tests.chaos.pods import ChaosPods, ClusterPods, Ending, LocalPods, cluster_pods
from tests.chaos.schedule import FaultGround, FaultKind, Step, schedule
from tests.chaos.servers import ChaosServers, ReplicatedServers, SingleServers
from tests.support.system import EVERYTHING, System, SystemPart
from tests.support.thread_kill import killable

SECONDS = ("acquire-2", "fleet-2", "bind-2", "passes-2", "beat-2")
WARM = {"default": 6, "bound": 2}
CLIENTS = 3
CLIENTS_END_S = 90.0
# Longest lease + lane opening + the limit of a stuck slot, twice. Above it something is broken, not
# slow.
CONVERGE_LIMIT_S = 300.0
SETTINGS: dict[str, Any] = {
    "pool": {"max_workers": 40, "pass_failures_limit": 1000, "surplus_ttl_s": 20},
    "profiles": {
        "default": {"warm_target": WARM["default"], "grace_s": 2},
        "bound": {
            "warm_target": WARM["bound"],
            "grace_s": 2,
            "activation_path": "/activate",
            "activation_payload": {"org": "{org}"},
        },
    },
    "orgs": {"narrow": {"cap": 2}},
}
_SERVERS: dict[str, type[SingleServers | ReplicatedServers]] = {
    "single": SingleServers,
    "replicated": ReplicatedServers,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosVerdict:
    """The result of a run."""

    seed: int
    minutes: float
    pods: str
    servers: str
    steps: Sequence[Step]
    clients: Sequence[Sequence[HistoryEvent]]
    holds: Sequence[ClaimHold]
    violations: Sequence[str]
    converged_s: float | None
    ended_by_themselves: Counter[str]
    moves: int


@dataclass(slots=True)
class Chaos:
    """A seed, the duration, and where the pods are."""

    seed: int
    minutes: float
    pods: str = "local"
    kinds: frozenset[FaultKind] | None = None
    servers: str = "single"
    _ended: Counter[str] = field(default_factory=Counter)

    def steps(self) -> list[Step]:
        kinds = (
            _SERVERS[self.servers].kinds | (ClusterPods if self.pods == "kubernetes" else LocalPods).further
        )
        ground = FaultGround(
            parts=(*EVERYTHING, *SECONDS),
            seconds=SECONDS,
            clients=CLIENTS,
            kinds=kinds if self.kinds is None else self.kinds & kinds,
        )
        return schedule(self.seed, self.minutes * 60, ground)

    def run(self, folder: Path) -> ChaosVerdict:
        with ExitStack() as stack:
            servers: ChaosServers = _SERVERS[self.servers](stack)
            pods = stack.enter_context(cluster_pods()) if self.pods == "kubernetes" else LocalPods(folder)
            system = stack.enter_context(
                System(folder, servers.database_url, settings=_settings(pods), **servers.options)
            )
            url = servers.begin(system)
            system.env = killable(system.env, folder / "kill")
            for name in SECONDS:
                system.parts[name] = SystemPart(name, folder, servers.env_of(system, name))
            say(f"starting the pool: {', '.join((*EVERYTHING, *SECONDS))}")
            system.run(*EVERYTHING, *SECONDS).wait_idle(WARM["default"], within_s=180)
            clients = Clients(folder, url, self.seed)
            stack.callback(clients.clear)
            faults = Faults(system, clients, pods, servers)
            return self._judged(system, clients, faults, pods)

    def _judged(self, system: System, clients: Clients, faults: Faults, pods: ChaosPods) -> ChaosVerdict:
        for i in range(CLIENTS):
            clients.start(f"client-{i}")
        steps = self.steps()
        self._carry_out(steps, system, clients, faults)
        say("the faults are over; clients go on, then give back what they hold")
        for part in system.parts.values():
            part.send(signal.SIGCONT)
        mended = time.monotonic()
        _pause(20)
        wrong = [f"{name} did not end" for name in clients.end(CLIENTS_END_S)]
        converged, left = self._converged(system, faults, pods, mended)
        told = history.read(clients.files)
        held = history.holds(told)
        wrong += (
            left
            + system.wrongs()
            + checker.violations(judged_history(system, told, frozenset(faults.killed_workers)))
        )
        return ChaosVerdict(
            seed=self.seed, minutes=self.minutes, pods=self.pods, servers=self.servers, steps=steps, clients=told, holds=held,
            violations=wrong, converged_s=converged, ended_by_themselves=self._ended,
            moves=len(system.entries()),
        )  # fmt: skip

    def _carry_out(self, steps: Sequence[Step], system: System, clients: Clients, faults: Faults) -> None:
        began, told = time.monotonic(), 0.0
        endings: list[tuple[float, int, Ending]] = []
        left = list(reversed(steps))
        while left or endings or time.monotonic() - began < self.minutes * 60:
            now = time.monotonic() - began
            if endings and endings[0][0] <= now:
                heapq.heappop(endings)[2]()
            elif left and left[-1].at_s <= now:
                step = left.pop()
                say(str(step))
                heapq.heappush(endings, (now + step.lasts_s, len(left), faults.begin(step)))
            else:
                self._mend(system, faults)
                if now - told > 15:
                    told = now
                    say(f"{now:7.1f} s  {clients.grants()} grants, {len(left)} faults to come")
                _pause(0.1)

    def _mend(self, system: System, faults: Faults) -> None:
        """Restart processes that ended by themselves, as a kubelet would."""
        for name, part in system.parts.items():
            if name not in faults.down and not part.alive():
                self._ended[f"{name} with {part.exit_code()}"] += 1
                part.start()

    def _converged(
        self, system: System, faults: Faults, pods: ChaosPods, since: float
    ) -> tuple[float | None, list[str]]:
        """Return the seconds until the pool had recovered, or what was still wrong at the limit."""
        wrong = ["it was never looked at"]
        while time.monotonic() - since < CONVERGE_LIMIT_S:
            self._mend(system, faults)
            try:
                wrong = unsettled(system, pods)
            except PoolError as exc:
                wrong = [str(exc)]
            if not wrong:
                return time.monotonic() - since, []
            _pause(0.5)
        return None, [f"after {CONVERGE_LIMIT_S:.0f} s: {sentence}" for sentence in wrong]


def unsettled(system: System, pods: ChaosPods) -> list[str]:
    """Return why the pool has not recovered yet. There are no requests, so only warm and parked
    workers should exist, each with its pod, and every pass should succeed.
    """
    W, R = schema.workers, schema.requests
    found = [f"{c} is live" for c in system.live_claims()]
    with system.store.read() as tx:
        rows = {
            i: (s, p)
            for i, s, p in tx.execute(select(W.c.id, W.c.state, W.c.profile).where(W.c.state.in_(LIVE)))
        }
        owed = tx.execute(
            select(func.count()).select_from(R).where(R.c.decided_at.is_not(None), R.c.replied_at.is_(None))
        ).scalar_one()
        late = [
            name
            for name, period in PERIODS_S.items()
            if period < 60 and passes.silent_for(tx, name, 3 * period)
        ]
    found += [f"{i} is {s}" for i, (s, _) in rows.items() if s not in (State.IDLE, State.HOT_IDLE)]
    for profile, target in WARM.items():
        warm = sum(1 for s, p in rows.values() if s == State.IDLE and p == profile)
        found += [f"{warm} of {target} {profile} workers are warm"] if warm < target else []
    found += [f"{owed} answers were not delivered"] if owed else []
    found += [f"{name} is dark" for name in late]
    there = pods.names()
    found += [f"pod {name} has no live row" for name in sorted(there - rows.keys())]
    found += [f"row {name} has no pod" for name in sorted(rows.keys() - there)]
    return found


def judged_history(system: System, told: Sequence[Sequence[HistoryEvent]], killed: frozenset[str]) -> History:
    """Return the clients' events beside the tables."""
    C, R = schema.claims, schema.requests
    with system.store.read() as tx:
        claims = [
            ClaimRow(claim=c.id, worker=c.worker_id, org=c.org, epoch=c.epoch, ended_why=c.ended_why)
            for c in tx.execute(select(C))
        ]
        requests = [
            RequestRow(org=r.org, request=r.request_id, state=r.state, claim=r.claim_id)
            for r in tx.execute(select(R))
        ]
    return History(
        clients=told,
        holds=history.holds(told),
        entries=system.entries(),
        claims={c.claim: c for c in claims},
        requests={(r.org, r.request): r for r in requests},
        killed=killed,
    )


def _settings(pods: ChaosPods) -> dict[str, Any]:
    """Settings for all pods, and those of their driver."""
    tables = pods.tables()
    return {**tables, **SETTINGS, "pool": {**tables.get("pool", {}), **SETTINGS["pool"]}}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
