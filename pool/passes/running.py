"""What all passes use: the lock, the pause switch, dry run, the limit per run, and the time of the
last success.

Correctness does not depend on this module: every move of a pass is fenced, so two concurrent runs
have the same result as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from pool.broker.locks import Lease
from pool.core.errors import Forbidden, PoolError, Refused, StaleView, Transient
from pool.core.periods import PERIODS_S, lock_ttl_s, not_within_s
from pool.core.turns import begins_at
from pool.drivers.port import Listing
from pool.lifecycle import item_errors
from pool.lifecycle.deps import Deps
from pool.metrics.catalog import Item
from pool.store import Tx, now, observed_counts, passes, rollouts, suspects
from pool.store.suspects import SuspectKind

log = structlog.get_logger(__name__)

T = TypeVar("T")
# No pass acts on a view of the cluster that is older than this.
STALE_AFTER_S = 15.0
# Number of calls without an answer that ends a run: the cause is then not the single item.
UNANSWERED_PER_RUN = 3
_SKIPPED = "skipped"


class Interrupted(PoolError):
    """The run lost its lock, or its process is stopping. It ends before its next step."""


@dataclass(kw_only=True)
class Run:
    """One run of one pass."""

    deps: Deps
    name: str
    dry_run: bool = False
    still_ours: Callable[[], bool] = lambda: True
    actions: Counter[str] = field(default_factory=Counter)
    observed: dict[str, int] = field(default_factory=dict)
    overflowed: bool = False
    # Skipped items (step and item), with the cause.
    skipped: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0
    # Those of them that raised an unexpected error: a bug.
    broken: set[str] = field(default_factory=set)

    def step(self, what: str, item: str, act: Callable[[], object]) -> bool:
        """Do and count one step on one item; not in a dry run. Return False if the item was skipped."""
        if not self.acts(what):
            return True
        done = self.try_item(what, item, act)
        if not done:
            self.actions[what] -= 1
        return done

    def try_item(self, what: str, item: str, act: Callable[[], object]) -> bool:
        """Act on one item among many.

        Return False if it was skipped: it was refused, got no answer, or raised another error. A
        skipped item is counted and recorded, and the run continues. A missing permission affects
        all items and ends the run; so do too many calls without an answer.
        """
        try:
            act()
        except (Forbidden, Interrupted):
            raise
        except Transient as exc:
            self.unanswered += 1
            self._skip(what, item, exc)
            if self.unanswered >= UNANSWERED_PER_RUN:
                raise
            return False
        except Exception as exc:  # noqa: BLE001 - a bug in the step of one item does not affect the others
            self._skip(what, item, exc)
            return False
        return True

    def _skip(self, what: str, item: str, exc: Exception) -> None:
        self.skipped[f"{what}/{item}"] = str(exc) if isinstance(exc, PoolError) else item_errors.cause_of(exc)
        self.did(_SKIPPED)
        if not isinstance(exc, Refused | Transient):
            self.broken.add(f"{what}/{item}")
            self.deps.metrics.items_left_out.labels(str(Item.STEP)).inc()

    def acts(self, what: str) -> bool:
        """Count a step before it is done.

        Return False in a dry run; raise if the run was interrupted.
        """
        self.raise_if_interrupted()
        self.did(what)
        return not self.dry_run

    def raise_if_interrupted(self) -> None:
        """Raise if the run has lost its lock or its process is stopping."""
        if not self.still_ours():
            raise Interrupted(f"{self.name} lost its lock or is stopping")

    def did(self, what: str, times: int = 1) -> None:
        """Count what was done, or what would have been done in a dry run."""
        if times:
            self.actions[what] += times

    def record_count(self, what: str, count: int) -> None:
        """Record how many of something this run found.

        It is stored for metrics, also if the run fails later.
        """
        self.observed[what] = count

    def bounded(self, found: Sequence[T]) -> Sequence[T]:
        """Return the part that fits the limit of this run.

        Queries ask for one more, so that an overflow is noticed.
        """
        limit = self.limit
        if len(found) > limit:
            self.overflowed = True
        return found[:limit]

    def in_turn(self, what: str, items: Sequence[T], name: Callable[[T], str]) -> list[T]:
        """Return the items of one step in the order of this run.

        Items that the last run skipped come last. If there are more than fit one run, each run
        starts at another item, so that items which keep failing do not block the others.
        """
        if not items:
            return []
        before = f"{self.name}/{what}/"
        with self.deps.store.read() as tx:
            refused = suspects.subjects(tx, SuspectKind.REFUSED, before)
            turn = int(now(tx).timestamp())
        begin = begins_at(turn, len(items)) if len(items) > self.limit else 0
        order = [*items[begin:], *items[:begin]]
        return sorted(order, key=lambda item: f"{before}{name(item)}" in refused)

    @property
    def acted(self) -> int:
        """Return the number of actions, without skipped items."""
        return self.actions.total() - self.actions[_SKIPPED]

    @property
    def limit(self) -> int:
        return self.deps.settings.pool.pass_limit

    def cluster(self) -> Listing:
        """Return all pods that the driver knows. Raises `StaleView` if the view is too old."""
        listing = self.deps.driver.cached()
        if listing.age_s > STALE_AFTER_S:
            raise StaleView(f"pods were last seen {listing.age_s:.0f} s ago")
        return listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass: its name and the function of one run."""

    name: str
    run: Callable[[Run], None]

    @property
    def period_s(self) -> float:
        return PERIODS_S[self.name]


def run_once(
    deps: Deps,
    what: Pass,
    *,
    dry_run: bool = False,
    by_hand: bool = False,
    stopping: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Run a pass once under its lock.

    Skip it if another process holds the lock, if it is paused, or if it was tried a moment ago. The
    last check does not apply to a run by hand.
    """
    try:
        with deps.locks.taken(what.name, lock_ttl_s(what.name)) as lease:
            if lease is None:
                return _report(deps, what, "held_elsewhere")
            with deps.metrics.holding(what.name):
                return _under_lock(deps, what, lease, dry_run=dry_run, by_hand=by_hand, stopping=stopping)
    except Transient as exc:
        log.warning("pass_skipped", name=what.name, cause=str(exc))
        return _report(deps, what, "unreachable", cause=str(exc))


def _under_lock(
    deps: Deps, what: Pass, lease: Lease, *, dry_run: bool, by_hand: bool, stopping: Callable[[], bool]
) -> dict[str, Any]:
    with deps.store.write() as tx:
        if lease.found_empty:
            observed_counts.broker_found_empty(tx)
        if deps.changes_builds:
            rollouts.note_use(tx, deps.revisions)
        young_s = 0.0 if by_hand else not_within_s(what.name)
        due = dry_run or passes.attempt(tx, what.name, deps.who, not_within_s=young_s)
    if not due:
        return _report(deps, what, "paused" if by_hand else "not_due")
    run = Run(deps=deps, name=what.name, dry_run=dry_run, still_ours=lambda: lease.held() and not stopping())
    report = carry_out(deps, what, run)
    if report["outcome"] == "interrupted" and not lease.held():
        deps.metrics.pass_lock_lost.labels(what.name).inc()
    return report


def carry_out(deps: Deps, what: Pass, run: Run) -> dict[str, Any]:
    """Run the pass and record the result in the table."""
    began = deps.clock.monotonic()
    try:
        with _recorded(deps, run):
            what.run(run)
            if not run.dry_run:
                _record_success(run, duration_s=deps.clock.monotonic() - began)
    except (Interrupted, Transient) as exc:
        outcome = (
            "interrupted"
            if isinstance(exc, Interrupted)
            else "stale"
            if isinstance(exc, StaleView)
            else "failed"
        )
        log.warning(
            "pass_ended_early", name=what.name, outcome=outcome, cause=str(exc), actions=dict(run.actions)
        )
        return _report(deps, what, outcome, cause=str(exc), actions=dict(run.actions))
    finally:
        deps.metrics.pass_seconds.labels(what.name).observe(deps.clock.monotonic() - began)
        for action, times in run.actions.items() if not run.dry_run else ():
            deps.metrics.pass_actions.labels(what.name, action).inc(max(0, times))
    if run.overflowed:
        deps.metrics.pass_overflow.labels(what.name).inc()
        log.warning("pass_overflowed", name=what.name, limit=run.limit)
    if run.acted:
        log.info("pass_acted", name=what.name, dry_run=run.dry_run, **run.actions)
    return _report(deps, what, "ok", actions=dict(run.actions))


def _record_success(run: Run, *, duration_s: float) -> None:
    detail = ", ".join(f"{k} {v}" for k, v in sorted(run.actions.items()) if v)
    with run.deps.store.write() as tx:
        passes.succeeded(tx, run.name, detail=detail, actions=run.acted, duration_s=duration_s)
        observed_counts.record(tx, run.name, run.observed)
        # An item that was refused before and is not refused now is fixed or gone.
        suspects.forget_others(tx, SuspectKind.REFUSED, _record_skipped(tx, run), among=f"{run.name}/")


@contextmanager
def _recorded(deps: Deps, run: Run) -> Iterator[None]:
    """Record an exception of a run in the table before it propagates.

    What cannot be recorded is logged and never replaces the exception.
    """
    try:
        yield
    except Exception as exc:
        outcome = "interrupted" if isinstance(exc, Interrupted) else "failed"
        detail = str(exc) if isinstance(exc, PoolError) else item_errors.cause_of(exc)
        try:
            with deps.store.write() as tx:
                passes.failed(tx, run.name, outcome=outcome, detail=detail[:500])
            with deps.store.write() as tx:
                observed_counts.record(tx, run.name, run.observed)
                _record_skipped(tx, run)
        except Exception as unrecorded:  # noqa: BLE001 - the cause of the failure is the other one
            log.warning("pass_failure_unrecorded", name=run.name, cause=item_errors.cause_of(unrecorded))
        raise


def _record_skipped(tx: Tx, run: Run) -> list[str]:
    """Record the items that this run skipped and return their subjects.

    Only the first of consecutive skips is logged.
    """
    subjects = []
    for what, cause in run.skipped.items():
        subject = f"{run.name}/{what}"
        subjects.append(subject)
        if suspects.see(tx, SuspectKind.REFUSED, subject, cause[:500]).runs == 1:
            write = log.error if what in run.broken else log.warning
            write("step_skipped", subject=subject, cause=cause[:500])
    return subjects


def _report(deps: Deps, what: Pass, outcome: str, **details: Any) -> dict[str, Any]:
    deps.metrics.pass_runs.labels(what.name, outcome).inc()
    return {"pass": what.name, "outcome": outcome, **details}
