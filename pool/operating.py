"""What operators do by hand, from the CLI or the board: drain, retire, pause, set. Every one is fenced like the pool's own moves and names who did it:
moves in the journal, the rest among the deeds. Answers that follow are left to the reap, so that an operator's process needs no key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pool import holding, matching, retiring
from pool.after import After
from pool.deps import Deps
from pool.errors import PoolError
from pool.ids import OrgId, ProfileName, WorkerId
from pool.periods import PERIODS_S
from pool.records import By, Seen
from pool.settings import OrgDefaults
from pool.states import CLAIMED, LEAVING, TERMINAL, ClaimEnd, Outcome, State
from pool.store import Store, deeds, orgkeys, orgs, passes, targets, workers

DRAINABLE_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Who asks, by which way, and what for."""

    name: str
    way: str
    why: str = ""

    @property
    def who(self) -> str:
        return f"{self.name} ({self.way})"

    def by(self, what: str) -> By:
        return By(who=self.who, why=f"{what}: {self.why}" if self.why else what)


@dataclass(slots=True)
class Drained:
    """What became of each worker that was asked for."""

    drained: list[WorkerId] = field(default_factory=list)
    leaving: list[WorkerId] = field(default_factory=list)
    left_alone: dict[WorkerId, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"drained": self.drained, "leaving": self.leaving, "left_alone": self.left_alone}


def drain(deps: Deps, ids: Collection[WorkerId], operator: Operator) -> Drained:
    """Unclaimed workers go now; those in use are marked and go when their claim ends. Nobody's work is touched."""
    done = Drained()
    for worker_id in ids:
        after = After()
        with deps.store.write() as tx:
            row = workers.get_for_update(tx, worker_id)
            if row is None or row.state in TERMINAL | LEAVING:
                done.left_alone[worker_id] = f"is {row.state}" if row else "is not in the table"
            elif row.state in CLAIMED:
                marked = workers.mark_leaving(tx, row.id, operator.by("drained")) is Outcome.MOVED
                done.leaving.append(row.id) if marked else done.left_alone.update(
                    {row.id: "is leaving already"}
                )
            elif retiring.drain(tx, after, row, operator.by("drained")) is Outcome.MOVED:
                done.drained.append(row.id)
        after.send(deps)
    return done


def retire(deps: Deps, worker_id: WorkerId, operator: Operator) -> str:
    """Away with it now, in use or not: the one verb that ends somebody's claim. What became of it."""
    acting = replace(deps, who=operator.who)
    after = After()
    with deps.store.write() as tx:
        row = workers.get(tx, worker_id)
        if row is None or row.state in TERMINAL:
            raise PoolError(f"{worker_id} is {row.state if row else 'not in the table'}")
        if row.state is State.DRAINING:
            after.retire.append(row.id)
        elif row.claim_id is not None:
            ended = holding.end(tx, acting, after, row.claim_id, ClaimEnd.RETIRED, detail=operator.why)
            if ended is None:
                raise PoolError(f"{worker_id}: its claim ended meanwhile; look again")
            matching.rebind(tx, acting, after, ended, cause="an operator retired its worker")
        elif retiring.drain(tx, after, row, operator.by("drained")) is not Outcome.MOVED:
            raise PoolError(f"{worker_id} moved meanwhile; look again")
    after.send(deps)
    return "sent again" if row.state is State.DRAINING else "retired"


def chosen(store: Store, what: str, name: str) -> list[Seen]:
    """The live workers that a drain of a worker, node, org or profile means."""
    with store.read() as tx:
        if what == "worker":
            row = workers.get(tx, WorkerId(name))
            return [row] if row else []
        return [w for w in workers.live(tx) if getattr(w, what) == name][:DRAINABLE_AT_ONCE]


def set_warm(store: Store, profile: ProfileName, warm_target: int | None, operator: Operator) -> None:
    """From now on so many warm; None: what the configuration says."""
    with store.write() as tx:
        if warm_target is None:
            targets.forget(tx, profile)
        else:
            targets.say(tx, profile, warm_target, who=operator.who)
        said = "as configured" if warm_target is None else str(warm_target)
        deeds.record(tx, "warm_target_set", f"profile {profile}", operator.by(said))


def set_pass_paused(store: Store, name: str, *, paused: bool, operator: Operator) -> None:
    """Stop a pass and its fallback, or let it run again."""
    if name not in PERIODS_S:
        raise PoolError(f"no pass {name!r}: one of {', '.join(PERIODS_S)}")
    with store.write() as tx:
        passes.set_paused(tx, name, paused=paused, by=operator.who)
        what = "pass_paused" if paused else "pass_resumed"
        deeds.record(tx, what, f"pass {name}", operator.by(what.replace("_", " ")))


def set_pool_paused(store: Store, *, paused: bool, operator: Operator) -> None:
    """Stop handing out workers, or hand them out again."""
    with store.write() as tx:
        orgs.pause(tx, paused=paused)
        what = "pool_paused" if paused else "pool_resumed"
        deeds.record(tx, what, "pool", operator.by(what.replace("_", " ")))


def change_org_key(store: Store, org: OrgId, *, overlap_s: int, operator: Operator) -> int:
    """A new version of an org's key; the one before it is honoured for the overlap. Its number."""
    with store.write() as tx:
        if orgs.get(tx, org) is None:
            raise PoolError(f"there is no org {org}; make it with `warmpool org set {org}`")
        version = orgkeys.change(tx, org, overlap_s=overlap_s)
        said = f"version {version}, the one before it for {overlap_s} s"
        deeds.record(tx, "org_key_changed", f"org {org}", operator.by(said))
    return version


def set_org(
    store: Store, org: OrgId, defaults: OrgDefaults, changes: Mapping[str, Any], operator: Operator
) -> Any:
    """Make an org, or change some of its settings; what is not named stays. Its row afterwards."""
    with store.write() as tx:
        orgs.seed(tx, org, defaults)
        if changes:
            orgs.change(tx, org, changes)
        said = ", ".join(f"{k} {v}" for k, v in changes.items()) or "made"
        deeds.record(tx, "org_set", f"org {org}", operator.by(said))
        return orgs.get(tx, org)
