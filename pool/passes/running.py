"""What all passes have in common: the lock, the pause switch, dry run, the limit per run, and an honest `last success`.

Correctness never rests here: every move that a pass makes is fenced by itself, so two runs at once end as one would.
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
from pool.lifecycle import sparing
from pool.lifecycle.deps import Deps
from pool.metrics.catalog import Item
from pool.store import Tx, now, observed_counts, passes, suspects
from pool.store.suspects import SuspectKind

log = structlog.get_logger(__name__)

T = TypeVar("T")
# A view of the cluster older than this decides nothing.
STALE_AFTER_S = 15.0
# So many things in one run that nobody answered for: it is not the things.
UNANSWERED_PER_RUN = 3
_SKIPPED = "skipped"


class Interrupted(PoolError):
    """The run lost its lock, or its process is stopping: it ends before its next step."""


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
    # What was left out, and why: step and thing.
    skipped: dict[str, str] = field(default_factory=dict)
    unanswered: int = 0
    # Those of them that raised what no step should: a bug.
    broken: set[str] = field(default_factory=set)

    def step(self, what: str, thing: str, act: Callable[[], object]) -> bool:
        """One step on one thing, counted, and not done in a dry run. False if the thing had to be left out."""
        if not self.acts(what):
            return True
        done = self.spare(what, thing, act)
        if not done:
            self.actions[what] -= 1
        return done

    def spare(self, what: str, thing: str, act: Callable[[], object]) -> bool:
        """Do something to one thing among many. One that is refused, that nobody answers for, or that raises anything else is left out (False),
        counted and told, and the run goes on with the others. A right that we lack is missing for all of them and ends the run; so does one
        unanswered call too many."""
        try:
            act()
        except (Forbidden, Interrupted):
            raise
        except Transient as exc:
            self.unanswered += 1
            self._leave_out(what, thing, exc)
            if self.unanswered >= UNANSWERED_PER_RUN:
                raise
            return False
        except Exception as exc:  # noqa: BLE001 - a bug in one thing's step is no other thing's matter
            self._leave_out(what, thing, exc)
            return False
        return True

    def _leave_out(self, what: str, thing: str, exc: Exception) -> None:
        self.skipped[f"{what}/{thing}"] = str(exc) if isinstance(exc, PoolError) else sparing.cause_of(exc)
        self.did(_SKIPPED)
        if not isinstance(exc, Refused | Transient):
            self.broken.add(f"{what}/{thing}")
            self.deps.metrics.items_left_out.labels(str(Item.STEP)).inc()

    def acts(self, what: str) -> bool:
        """Asked before each step: counts it, says no in a dry run, and raises if the run has lost its right to go on."""
        self.must_go_on()
        self.did(what)
        return not self.dry_run

    def must_go_on(self) -> None:
        """Raises if the run has lost its right to go on."""
        if not self.still_ours():
            raise Interrupted(f"{self.name} lost its lock or is stopping")

    def did(self, what: str, times: int = 1) -> None:
        """Counts what was done, or in a dry run would have been."""
        if times:
            self.actions[what] += times

    def saw(self, what: str, count: int) -> None:
        """How many of something there were when this run looked; kept for whoever watches, also if the run fails later."""
        self.observed[what] = count

    def bounded(self, found: Sequence[T]) -> Sequence[T]:
        """The part that fits this run's limit; queries ask for one more than that, so that an overflow shows."""
        limit = self.limit
        if len(found) > limit:
            self.overflowed = True
        return found[:limit]

    def in_turn(self, what: str, things: Sequence[T], name: Callable[[T], str]) -> list[T]:
        """The things of one step in the order in which this run takes them. What the last run had to leave out comes after all others, and if there
        are more than fit one run, each run begins at another place: what cannot be done never keeps the others out for good."""
        if not things:
            return []
        before = f"{self.name}/{what}/"
        with self.deps.store.read() as tx:
            refused = suspects.subjects(tx, SuspectKind.REFUSED, before)
            turn = int(now(tx).timestamp())
        begin = begins_at(turn, len(things)) if len(things) > self.limit else 0
        order = [*things[begin:], *things[:begin]]
        return sorted(order, key=lambda thing: f"{before}{name(thing)}" in refused)

    @property
    def acted(self) -> int:
        """How much was done, what was left out not counted."""
        return self.actions.total() - self.actions[_SKIPPED]

    @property
    def limit(self) -> int:
        return self.deps.settings.pool.pass_limit

    def cluster(self) -> Listing:
        """All pods as the driver knows them; raises rather than let a pass act on an old view."""
        listing = self.deps.driver.cached()
        if listing.age_s > STALE_AFTER_S:
            raise StaleView(f"pods were last seen {listing.age_s:.0f} s ago")
        return listing


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A pass: its name and what one run does."""

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
    """One run under its lock, as beat asks for it. Held elsewhere, paused or tried just now: skipped quietly. Whoever asks by hand is not told that it
    was tried just now."""
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
    """The run itself, and what the table is told of it."""
    began = deps.clock.monotonic()
    try:
        with _recorded(deps, run):
            what.run(run)
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
    if not run.dry_run:
        with deps.store.write() as tx:
            passes.succeeded(
                tx,
                what.name,
                detail=", ".join(f"{k} {v}" for k, v in sorted(run.actions.items()) if v),
                actions=run.acted,
                duration_s=deps.clock.monotonic() - began,
            )
            observed_counts.record(tx, what.name, run.observed)
            # What was refused before and was not now is mended or gone.
            suspects.forget_others(tx, SuspectKind.REFUSED, _told(tx, run), among=f"{run.name}/")
    if run.acted:
        log.info("pass_acted", name=what.name, dry_run=run.dry_run, **run.actions)
    return _report(deps, what, "ok", actions=dict(run.actions))


@contextmanager
def _recorded(deps: Deps, run: Run) -> Iterator[None]:
    """Whatever a run raises is in the table before it goes on its way."""
    try:
        yield
    except Exception as exc:
        outcome = "interrupted" if isinstance(exc, Interrupted) else "failed"
        try:
            with deps.store.write() as tx:
                passes.failed(tx, run.name, outcome=outcome, detail=str(exc)[:500])
                observed_counts.record(tx, run.name, run.observed)
                _told(tx, run)
        except Transient as unrecorded:
            log.warning("pass_failure_unrecorded", name=run.name, cause=str(unrecorded))
        raise


def _told(tx: Tx, run: Run) -> list[str]:
    """What this run left out, for whoever looks; in the log when it begins."""
    told = []
    for what, cause in run.skipped.items():
        subject = f"{run.name}/{what}"
        told.append(subject)
        if suspects.see(tx, SuspectKind.REFUSED, subject, cause[:500]).runs == 1:
            loud = log.error if what in run.broken else log.warning
            loud("step_skipped", subject=subject, cause=cause[:500])
    return told


def _report(deps: Deps, what: Pass, outcome: str, **details: Any) -> dict[str, Any]:
    deps.metrics.pass_runs.labels(what.name, outcome).inc()
    return {"pass": what.name, "outcome": outcome, **details}
