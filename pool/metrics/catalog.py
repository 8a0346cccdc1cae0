"""Every metric: name, meaning, labels and origin. Tests check alerts, dashboard and documentation
against this list.

Labels are bounded: states, reasons and passes are fixed, profiles are configured, orgs are the few
nearest to their cap. A worker, claim or request is never a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "warmpool_"
LATENCY_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    3600.0,
)
SPAWN_S = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 300.0)
RUN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)


class MetricKind(StrEnum):
    """Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Origin(StrEnum):
    """Source of a metric: each process counts it, or the exporter reads it from the database."""

    PROCESS = "process"
    TABLE = "table"


class Item(StrEnum):
    """A single item that may fail without stopping the loop that handles it."""

    ANSWER = "answer"
    MATCH = "match"
    TIMER = "timer"
    MARK = "mark"
    AUDIT_ENTRY = "audit_entry"
    WATCH_EVENT = "watch_event"
    MESSAGE = "message"
    TASK_EVENT = "task_event"
    ACTIVATION = "activation"
    PROBE = "probe"
    STEP = "step"
    TRACEPARENT = "traceparent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    kind: MetricKind
    doc: str
    labels: tuple[str, ...] = ()
    origin: Origin = Origin.PROCESS
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """Return the name in Prometheus."""
        return PREFIX + self.name + ("_total" if self.kind is MetricKind.COUNTER else "")

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names of the metric's series."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(self.full_name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.full_name,)


def _counter(name: str, doc: str, *labels: str, origin: Origin = Origin.PROCESS) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, doc=doc, labels=labels, origin=origin)


def _gauge(name: str, doc: str, *labels: str, origin: Origin = Origin.TABLE) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, doc=doc, labels=labels, origin=origin)


def _histogram(name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.HISTOGRAM, doc=doc, labels=labels, buckets=buckets)


_DECLARED = (
    # Acquires.
    _counter("acquires", "Answered acquires; the reason is empty for a grant", "profile", "outcome", "reason"),
    _counter("misses", "Acquires that found no free worker and were refused or had to wait", "profile", "reason"),
    _histogram("acquire_seconds", "Time from receiving an acquire to its answer, waiting included", LATENCY_S, "outcome", "source"),
    _histogram("acquire_phase_seconds", "Time per phase of an acquire: claim (the call), wait (for a worker), bind (the activation)", LATENCY_S, "phase"),
    _counter("claims_ended", "Ended claims by cause", "why"),
    _counter("park_failures", "Releases whose worker could not be parked at once"),
    _counter("requests_unproven", "Requests refused because of their signature, by problem", "trouble"),
    _counter("messages_refused", "Messages dropped without an answer because they are unreadable or not signed by the control plane", "reason"),
    # Workers.
    _counter("moves", "State changes of workers, by old state, new state and reason", "from", "to", "reason"),
    _histogram("spawn_seconds", "Time from creating a slot until its worker is ready", SPAWN_S, "profile"),
    _counter("spawn_failures", "Failed spawns", "profile", "reason"),
    _gauge("spawns_in_flight", "Pods that this process is creating now", origin=Origin.PROCESS),
    _gauge("spawn_limit", "Maximum number of pods that this process creates at the same time", origin=Origin.PROCESS),
    _counter("activation_failures", "Failed activations", "profile"),
    # Passes.
    _counter("pass_runs", "Runs of a pass by outcome, skipped runs included", "pass", "outcome"),
    _histogram("pass_seconds", "Duration of the runs of a pass", RUN_S, "pass"),
    _counter("pass_actions", "Actions taken by a pass", "pass", "action"),
    _counter("pass_overflow", "Runs that reached their limit and left work for the next run", "pass"),
    _gauge("pass_lock_held", "1 while this process holds the lock of the pass", "pass", origin=Origin.PROCESS),
    _counter("pass_lock_lost", "Runs that stopped because they lost their lock", "pass"),
    _counter("fallback_runs", "Runs of the fallback reap, which needs no beat, lock or Redis"),
    _gauge("fallback_active", "1 while this process runs the fallback reap", origin=Origin.PROCESS),
    _counter("beat_ticks", "Ticks sent by beat", "pass"),
    # Failures inside a process that did not stop it.
    _counter("thread_restarts", "Restarts of long-lived threads that ended unexpectedly", "thread"),
    _counter("items_left_out", "Single items (an answer, a timer, a watch event) that failed and were skipped", "item"),
    # Celery and the Kubernetes API.
    _counter("tasks", "Ended Celery tasks by outcome", "queue", "task", "outcome"),
    _counter("api_calls", "Calls to the Kubernetes API by verb, resource and status code; code 0 means no answer", "verb", "resource", "code"),
    _gauge("build_info", "Always 1; the labels show version, role and driver of this process", "version", "role", "driver", origin=Origin.PROCESS),
    # The database: supply and demand.
    _gauge("workers", "Live workers by profile and state", "profile", "state"),
    _gauge("warm_target", "Number of idle workers to keep ready", "profile"),
    _gauge("live_workers", "Live workers according to the pool's counter, slots included"),
    _gauge("max_workers", "Maximum number of live workers; 0 means no cap"),
    _gauge("waiting_requests", "Requests that are waiting for a worker", "profile"),
    _gauge("waiting_oldest_seconds", "Waiting time of the oldest waiting request", "profile"),
    _gauge("breaker_open", "1 while the breaker of a profile stops spawns because they keep failing", "profile"),
    _gauge("breaker_failures", "Consecutive failed spawns of a profile", "profile"),
    _gauge("pool_paused", "1 while an operator has paused the pool"),
    _gauge("orgs", "Number of orgs"),
    _gauge("org_in_use", "Live claims of the orgs that are nearest to their cap or have the most claims", "org"),
    _gauge("org_cap", "Maximum number of live claims of these orgs; 0 means no cap", "org"),
    # The database: problems.
    _gauge("idle_overdue", "Unused workers that should have been retired: parked past their TTL, or idle above the target for too long", "profile", "kind"),
    _gauge("busy_unprotected", "Busy workers whose pod lacks the busy label, at the last run of guard_disruption"),
    _gauge("unhealthy_in_use", "Workers in use that failed three consecutive probes"),
    _gauge("stale_protected", "Unused workers whose pod still has the busy label, at the last run of guard_disruption"),
    _gauge("orphans", "Orphaned pods at the last run of sweep_orphans"),
    _gauge("orphans_held", "Orphaned pods that are kept because they report an open session or do not answer"),
    _gauge("rows_without_pod", "Rows whose pod was missing at the last run of sweep_orphans"),
    # The database: cost.
    _counter("idle_vcpu_seconds", "vCPU-seconds of workers without a claim, by reason", "profile", "reason", origin=Origin.TABLE),
    _counter("idle_gib_seconds", "GiB-seconds of workers without a claim, by reason", "profile", "reason", origin=Origin.TABLE),
    _gauge("headroom_wanted", "Number of placeholder pods to keep for a profile", "profile"),
    _gauge("headroom_pods", "Placeholder pods of the present shape that were running at the last run of reconcile_headroom", "profile"),
    # The database: passes.
    _gauge("pass_period_seconds", "Period of a pass", "pass"),
    _gauge("pass_last_success_age_seconds", "Time since the last success of a pass, or since the pool was created if there was none", "pass"),
    _gauge("pass_last_attempt_age_seconds", "Time since the last attempt of a pass, or since the pool was created if there was none", "pass"),
    _gauge("pass_ever_succeeded", "1 once a pass has succeeded", "pass"),
    _gauge("pass_last_duration_seconds", "Duration of the last successful run", "pass"),
    _gauge("pass_failures_in_a_row", "Failed runs since the last success", "pass"),
    _gauge("pass_paused", "1 while an operator has paused the pass", "pass"),
    _gauge("pass_holder", "Always 1; the label shows the process that attempted the pass last", "pass", "holder"),
    _gauge("canary_age_seconds", "Time since a canary last passed through the queue acquire"),
    _counter("broker_emptied", "Number of times that a pass found Redis empty", origin=Origin.TABLE),
    # Dependencies of the exporter.
    _gauge("database_up", "1 if the exporter could read the database"),
    _gauge("broker_up", "1 if the exporter could read Redis"),
    _gauge("queue_length", "Messages waiting in a Celery queue", "queue"),
    _gauge("exporter_seconds", "Time that the exporter needed to read all metrics"),
)  # fmt: skip

CATALOG: dict[str, Metric] = {m.name: m for m in _DECLARED}
