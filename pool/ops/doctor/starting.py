"""Checks at the start of a component. A missing vital permission ends the process with an error
that names it; every other problem is one log line. A cluster that does not answer does not prevent
the start."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from pool import wiring
from pool.core.backoff import Backoff
from pool.core.clock import SystemClock
from pool.core.errors import PoolError, Refused, Transient
from pool.core.settings import UNBOUNDED, Settings
from pool.ops.doctor import broker, clocks, cluster, disruption
from pool.ops.doctor.checks import run_all
from pool.ops.doctor.finding import Check, Installation, Level

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector, MissingRight

log = structlog.get_logger(__name__)

AT_START: Sequence[Check] = (
    broker.mode,
    broker.policy,
    broker.persistence,
    cluster.reachable,
    clocks.differences,
    disruption.priorities,
    disruption.budget,
)
# An API server that has just started does not know the roles yet, and a new role takes some seconds to apply:
# retry.
_AGAIN = Backoff(first_s=0.5, limit_s=4.0, tries=5)
_CALL_S = 5


class RightsMissing(PoolError):
    """A permission is missing that the process cannot work without."""


def assert_rights(settings: Settings) -> None:
    """Raise `RightsMissing`, with verbs, resources and the fix, if a vital permission is missing; `Refused`
    without credentials."""
    if settings.pool.driver != "kubernetes":
        return
    quick = replace(settings.pool, call_timeout_s=min(_CALL_S, settings.pool.call_timeout_s))
    with closing(wiring.open_cluster(replace(settings, pool=quick))) as inspector:
        try:
            found = cluster.missing(inspector, _missing_rights(inspector))
        except (Transient, Refused) as exc:
            # The API server does not answer, or does not allow access reviews. A missing permission shows on
            # first use.
            log.warning("rights_not_checked", cause=str(exc))
            return
    for finding in found:
        if finding.level is not Level.BAD:
            log.warning("right_missing", **finding.as_log())
    if bad := [f for f in found if f.level is Level.BAD]:
        raise RightsMissing("; ".join([*(f.evidence for f in bad), bad[0].fix]))


def log_limits(settings: Settings) -> None:
    """Log that nothing limits the number of workers, if that is so."""
    if not settings.pool.max_workers:
        log.warning("pool_unbounded", cause=UNBOUNDED)


def log_start_checks(settings: Settings) -> None:
    """Run the other checks of a start, and log one line for each problem."""
    installation = Installation(settings)
    try:
        for finding in run_all(installation, AT_START):
            if finding.level in (Level.WARN, Level.BAD):
                log.warning("preflight_problem_found", **finding.as_log())
    finally:
        installation.close()


def _missing_rights(inspector: Inspector) -> Sequence[MissingRight]:
    clock, never = SystemClock(), threading.Event()
    missing_rights = inspector.missing_rights()
    for pause in _AGAIN.pauses():
        if not any(lack.vital for lack in missing_rights):
            break
        clock.wait(never, pause)
        missing_rights = inspector.missing_rights()
    return missing_rights
