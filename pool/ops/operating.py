"""Operator actions from the CLI or the board: drain, retire, pause, set.

Each is fenced like the pool's own moves and recorded with the operator's name: moves in the
journal, the rest in the audit log. Replies to waiting callers are left to the pass `reap`, so that
the operator's process needs no key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.core.errors import PoolError
from pool.core.ids import OrgId, ProfileName, WorkerId
from pool.core.periods import PERIODS_S
from pool.core.records import By, SeenWorker
from pool.core.settings import OrgDefaults
from pool.core.states import CLAIMED, LEAVING, TERMINAL, ClaimEnd, MoveReason, Outcome, State
from pool.lifecycle import retiring
from pool.lifecycle.deps import Deps
from pool.lifecycle.effects import transaction
from pool.store import Store, Tx, audit, claims, orgkeys, orgs, passes, suspects, targets, workers
from pool.store.suspects import SuspectKind

DRAINABLE_AT_ONCE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator: name, interface (`cli`, `board`) and reason."""

    name: str
    way: str
    why: str = ""

    @property
    def who(self) -> str:
        return f"{self.name} ({self.way})"

    def by(self, reason: MoveReason) -> By:
        """Return the author of a journal entry."""
        return By(who=self.who, reason=reason, detail=self.why)

    def record(self, tx: Tx, what: str, subject: str, change: str) -> None:
        """Write an audit entry: the action, its subject, the new values, and the operator's reason."""
        audit.record(tx, what, subject, who=self.who, why=f"{change}: {self.why}" if self.why else change)


@dataclass(slots=True)
class Drained:
    """The result of a drain, by worker."""

    drained: list[WorkerId] = field(default_factory=list)
    leaving: list[WorkerId] = field(default_factory=list)
    left_alone: dict[WorkerId, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"drained": self.drained, "leaving": self.leaving, "left_alone": self.left_alone}


def drain(deps: Deps, ids: Collection[WorkerId], operator: Operator) -> Drained:
    """Drain workers without a claim now, and mark busy ones, which drain when their claim ends. No claim ends
    early."""
    done, by = Drained(), operator.by(MoveReason.DRAINED)
    for worker_id in ids:
        with transaction(deps) as (tx, after):
            row = workers.get_for_update(tx, worker_id)
            if row is None or row.state in TERMINAL | LEAVING:
                done.left_alone[worker_id] = f"is {row.state}" if row else "does not exist"
            elif row.state in CLAIMED:
                marked = workers.mark_leaving(tx, row.id, by) is Outcome.MOVED
                done.leaving.append(row.id) if marked else done.left_alone.update(
                    {row.id: "is already leaving"}
                )
            elif retiring.drain(tx, after, row, by) is Outcome.MOVED:
                done.drained.append(row.id)
    return done


def retire(deps: Deps, worker_id: WorkerId, operator: Operator) -> str:
    """Retire a worker now and return the result. This is the only operator action that ends a claim."""
    by = operator.by(MoveReason.RETIRED)
    with transaction(deps) as (tx, after):
        row = workers.get(tx, worker_id)
        if row is None or row.state in TERMINAL:
            cause = f"is already {row.state}" if row else "does not exist"
            raise PoolError(f"cannot retire {worker_id}: it {cause}")
        if row.state is State.DRAINING:
            after.retire.append(row.id)
        elif row.claim_id is not None:
            asked = deps.rule_argument(cause="an operator retired its worker")
            ended = claims.end(tx, asked, row.claim_id, ClaimEnd.RETIRED, by)
            if ended is None:
                raise PoolError(f"{worker_id} was not retired: its claim has just ended; try again")
            after.follow(ended)
        elif retiring.drain(tx, after, row, by) is not Outcome.MOVED:
            raise PoolError(f"{worker_id} was not retired: its state has just changed; try again")
    return (
        "it was draining already; the deletion of its pod is repeated"
        if row.state is State.DRAINING
        else "retired"
    )


def chosen(store: Store, what: str, name: str) -> list[SeenWorker]:
    """Return the workers selected by a worker id, node, org or profile."""
    with store.read() as tx:
        if what == "worker":
            row = workers.get(tx, WorkerId(name))
            return [row] if row else []
        return [w for w in workers.live(tx) if getattr(w, what) == name][:DRAINABLE_AT_ONCE]


def release_orphan(store: Store, name: str, operator: Operator) -> None:
    """Let the next sweep delete an orphaned pod that does not answer.

    It is still deleted only if no row owns it and it reports no open session then.
    """
    with store.write() as tx:
        row = workers.get(tx, WorkerId(name))
        if row is not None and row.state not in TERMINAL:
            raise PoolError(
                f"cannot delete {name}: it has a live row, which is {row.state}; use `warmpool drain worker`"
            )
        if suspects.subjects(tx, SuspectKind.HELD_POD, suspects.pod_subject(name, "")):
            raise PoolError(f"cannot delete {name}: it reports an open session; end the session first")
        silent = suspects.subjects(tx, SuspectKind.SILENT_POD, suspects.pod_subject(name, ""))
        if not silent:
            raise PoolError(f"cannot delete {name}: it is not a held orphan; see `warmpool orphan list`")
        for subject in silent:
            suspects.see(tx, SuspectKind.RELEASED_POD, subject, operator.who)
        operator.record(tx, "orphan_released", name, "its pod may be deleted")


def set_warm(store: Store, profile: ProfileName, warm_target: int | None, operator: Operator) -> None:
    """Set the warm target of a profile; None restores the configured one."""
    with store.write() as tx:
        if warm_target is None:
            targets.forget(tx, profile)
        else:
            targets.set_target(tx, profile, warm_target, who=operator.who)
        value = "as configured" if warm_target is None else str(warm_target)
        operator.record(tx, "warm_target_set", f"profile {profile}", value)


def set_pass_paused(store: Store, name: str, *, paused: bool, operator: Operator) -> None:
    """Pause or resume a pass and its fallback."""
    if name not in PERIODS_S:
        raise PoolError(f"unknown pass {name!r}; the passes are: {', '.join(PERIODS_S)}")
    with store.write() as tx:
        passes.set_paused(tx, name, paused=paused, by=operator.who)
        what = "pass_paused" if paused else "pass_resumed"
        operator.record(tx, what, f"pass {name}", what.replace("_", " "))


def set_pool_paused(store: Store, *, paused: bool, operator: Operator) -> None:
    """Pause or resume the pool; while it is paused, acquires are refused."""
    with store.write() as tx:
        orgs.pause(tx, paused=paused)
        what = "pool_paused" if paused else "pool_resumed"
        operator.record(tx, what, "pool", what.replace("_", " "))


def change_org_key(store: Store, org: OrgId, *, overlap_s: int, operator: Operator) -> int:
    """Create a new version of an org's key and return its number; the previous one stays valid for the
    overlap."""
    with store.write() as tx:
        if orgs.get(tx, org) is None:
            raise PoolError(f"there is no org {org}; create it with `warmpool org set {org}`")
        version = orgkeys.change(tx, org, overlap_s=overlap_s)
        change = f"version {version}, the previous one stays valid for {overlap_s} s"
        operator.record(tx, "org_key_changed", f"org {org}", change)
    return version


def set_org(
    store: Store, org: OrgId, defaults: OrgDefaults, changes: Mapping[str, Any], operator: Operator
) -> Any:
    """Create an org or change some of its settings, and return its new row. Settings not in
    `changes` stay.
    """
    with store.write() as tx:
        orgs.seed(tx, org, defaults)
        if changes:
            orgs.change(tx, org, changes)
        change = ", ".join(f"{k} {v}" for k, v in changes.items()) or "created"
        operator.record(tx, "org_set", f"org {org}", change)
        return orgs.get(tx, org)
