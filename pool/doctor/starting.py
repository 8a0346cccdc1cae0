"""What a component looks at when it starts. A right that it can not work without ends it, with the verb named; everything else is told in a line and stops
nobody. A cluster that does not answer is no reason not to start: it will."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from pool import wiring
from pool.backoff import Backoff
from pool.clock import SystemClock
from pool.doctor import broker, clocks, cluster, disruption
from pool.doctor.checks import run_all
from pool.doctor.finding import Check, Level, Patient
from pool.errors import PoolError, Refused, Transient
from pool.settings import Settings

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector, Lack

log = structlog.get_logger(__name__)

AT_START: Sequence[Check] = (
    broker.policy,
    broker.persistence,
    cluster.reachable,
    clocks.differences,
    disruption.priorities,
    disruption.budget,
    disruption.node_ceiling,
)
# A server that has just started does not know the roles yet, and a role that was made a moment ago is not known to it: asked again for some seconds.
_AGAIN = Backoff(first_s=0.5, limit_s=4.0, tries=5)
_CALL_S = 5


class RightsMissing(PoolError):
    """The process could not do its work."""


def assert_rights(settings: Settings) -> None:
    """Raises `RightsMissing`, one line with verbs, resources and the fix, if something vital is not granted, and `Refused` without credentials."""
    if settings.pool.driver != "kubernetes":
        return
    quick = replace(settings.pool, call_timeout_s=min(_CALL_S, settings.pool.call_timeout_s))
    with closing(wiring.open_cluster(replace(settings, pool=quick))) as inspector:
        try:
            found = cluster.missing(inspector, _lacking(inspector))
        except (Transient, Refused) as exc:
            # Away, or it does not tell anybody what he may do. What is missing will show when it is used.
            log.warning("rights_not_checked", cause=str(exc))
            return
    for finding in found:
        if finding.level is not Level.BAD:
            log.warning("right_missing", id=finding.id, evidence=finding.evidence, fix=finding.fix)
    if bad := [f for f in found if f.level is Level.BAD]:
        raise RightsMissing("; ".join([*(f.evidence for f in bad), bad[0].fix]))


def look_around(settings: Settings) -> None:
    """Everything else that a start should tell: one line for each thing that is wrong."""
    patient = Patient(settings)
    try:
        for finding in run_all(patient, AT_START):
            if finding.level in (Level.WARN, Level.BAD):
                log.warning("preflight", id=finding.id, evidence=finding.evidence, fix=finding.fix)
    finally:
        patient.close()


def _lacking(inspector: Inspector) -> Sequence[Lack]:
    clock, never = SystemClock(), threading.Event()
    lacking = inspector.lacking()
    for pause in _AGAIN.pauses():
        if not any(lack.vital for lack in lacking):
            break
        clock.wait(never, pause)
        lacking = inspector.lacking()
    return lacking
