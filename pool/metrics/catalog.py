"""Every metric: its name, what it says, its labels and where it comes from. Alerts, dashboard and documentation are held to this list.

Labels are bounded: states, reasons and passes are fixed, profiles are configured, orgs are the few nearest to their cap. No worker, claim or
request is ever a label.
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


class Kind(StrEnum):
    """How its value moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Origin(StrEnum):
    """Who knows it: each process of itself, or the table, told by the exporter."""

    PROCESS = "process"
    TABLE = "table"


class Item(StrEnum):
    """What can be left out by itself."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()
    origin: Origin = Origin.PROCESS
    buckets: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """As Prometheus shows it."""
        return PREFIX + self.name + ("_total" if self.kind is Kind.COUNTER else "")

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series."""
        if self.kind is Kind.HISTOGRAM:
            return tuple(self.full_name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.full_name,)


def _counter(name: str, doc: str, *labels: str, origin: Origin = Origin.PROCESS) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, doc=doc, labels=labels, origin=origin)


def _gauge(name: str, doc: str, *labels: str, origin: Origin = Origin.TABLE) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, doc=doc, labels=labels, origin=origin)


def _histogram(name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, doc=doc, labels=labels, buckets=buckets)


_DECLARED = (
    # Asking for workers.
    _counter("acquires", "Acquires that were answered; the reason is empty for a grant", "profile", "outcome", "reason"),
    _counter("misses", "Acquires that found no worker at hand: refused for it, or made to wait", "profile", "reason"),
    _histogram("acquire_seconds", "From taking up an acquire to its answer, waiting included", LATENCY_S, "outcome", "source"),
    _histogram("acquire_phase_seconds", "Where an acquire's time went: claim (the call itself), wait (for a worker), bind (its activation)", LATENCY_S, "phase"),
    _counter("claims_ended", "Claims that ended, by why", "why"),
    _counter("park_failures", "Releases whose worker could not be parked at once"),
    _counter("requests_unproven", "Requests that were refused because of their signature, by what was wrong with it", "trouble"),
    _counter("messages_refused", "Messages that were dropped unanswered because they cannot be read or are not signed by the control plane", "reason"),
    # Workers.
    _counter("moves", "Moves of workers, by the state they left, the state they went to and the cause", "from", "to", "cause"),
    _histogram("spawn_seconds", "From a slot to its worker being ready", SPAWN_S, "profile"),
    _counter("spawn_failures", "Spawns that failed", "profile", "reason"),
    _gauge("spawns_in_flight", "Pods that this process is making now", origin=Origin.PROCESS),
    _gauge("spawn_limit", "Pods that this process may make at once", origin=Origin.PROCESS),
    _counter("activation_failures", "Activations that failed", "profile"),
    # Passes.
    _counter("pass_runs", "Runs of a pass by outcome; skipped ones included", "pass", "outcome"),
    _histogram("pass_seconds", "How long runs of a pass took", RUN_S, "pass"),
    _counter("pass_actions", "What runs of a pass did", "pass", "action"),
    _counter("pass_overflow", "Runs that left work for the next one", "pass"),
    _gauge("pass_lock_held", "1 while this process holds the pass's lock", "pass", origin=Origin.PROCESS),
    _counter("pass_lock_lost", "Runs that were ended by the loss of their lock", "pass"),
    _counter("fallback_runs", "Reaps run without beat, lock and Redis"),
    _gauge("fallback_active", "1 while this process reaps by itself", origin=Origin.PROCESS),
    _counter("beat_ticks", "Ticks that beat has sent", "pass"),
    # What went wrong inside a process and was survived.
    _counter("thread_restarts", "Long-lived threads that died and were started again", "thread"),
    _counter("items_left_out", "Single items (an answer, a timer, a watch event) that failed and were left out", "item"),
    # Celery and the cluster's API.
    _counter("tasks", "Celery tasks that ended, by how", "queue", "task", "outcome"),
    _counter("api_calls", "Calls to the cluster's API by verb, resource and status code; 0 is no answer", "verb", "resource", "code"),
    _gauge("build_info", "1; which version this process runs, and as what", "version", "role", "driver", origin=Origin.PROCESS),
    # The table: supply and demand.
    _gauge("workers", "Live workers by profile and state", "profile", "state"),
    _gauge("warm_target", "Idle workers that are kept ready", "profile"),
    _gauge("live_workers", "Live workers as the pool's own counter has them, slots included"),
    _gauge("max_workers", "Most live workers; 0 is no cap"),
    _gauge("waiting_requests", "Requests that wait for a worker", "profile"),
    _gauge("waiting_oldest_seconds", "How long the oldest of them has waited", "profile"),
    _gauge("breaker_open", "1 while no workers are made for a profile because its spawns keep failing", "profile"),
    _gauge("breaker_failures", "Spawns of a profile that failed in a row", "profile"),
    _gauge("pool_paused", "1 while an operator has paused handing out workers"),
    _gauge("orgs", "Orgs that are known"),
    _gauge("org_in_use", "Live claims of the orgs that are nearest to their cap or hold most", "org"),
    _gauge("org_cap", "Most live claims of these orgs; 0 is no cap", "org"),
    # The table: what should not be.
    _gauge("idle_overdue", "Unused workers that should be gone: parked past their time, or idle above the target for too long", "profile", "kind"),
    _gauge("busy_unprotected", "Busy workers whose pod does not say so, when the guard last looked"),
    _gauge("stale_protected", "Unused workers whose pod still says busy, when the guard last looked"),
    _gauge("orphans", "Pods that no row counts on, when the sweep last looked"),
    _gauge("orphans_held", "Orphans that are kept because they say that they are in use or can not be asked"),
    _gauge("rows_without_pod", "Rows whose pod was absent, when the sweep last looked"),
    # The table: cost.
    _counter("idle_vcpu_seconds", "vCPU-seconds of workers that served nobody, by why they stood there", "profile", "reason", origin=Origin.TABLE),
    _counter("idle_gib_seconds", "GiB-seconds of workers that served nobody, by why they stood there", "profile", "reason", origin=Origin.TABLE),
    _gauge("headroom_wanted", "Placeholder pods that are to be kept"),
    _gauge("headroom_pods", "Placeholder pods, when their pass last looked"),
    # The table: passes.
    _gauge("pass_period_seconds", "How often a pass is to run", "pass"),
    _gauge("pass_last_success_age_seconds", "Since a pass last succeeded, or since the pool began if it never has", "pass"),
    _gauge("pass_last_attempt_age_seconds", "Since a pass was last tried, or since the pool began if it never was", "pass"),
    _gauge("pass_ever_succeeded", "1 once a pass has succeeded", "pass"),
    _gauge("pass_last_duration_seconds", "How long its last success took", "pass"),
    _gauge("pass_failures_in_a_row", "Failed runs since its last success", "pass"),
    _gauge("pass_paused", "1 while an operator has paused it", "pass"),
    _gauge("pass_holder", "1; who tried it last", "pass", "holder"),
    _gauge("canary_age_seconds", "Since a canary last came through the queue acquire"),
    _counter("broker_emptied", "Times that a pass found Redis emptied", origin=Origin.TABLE),
    # What the exporter itself can reach.
    _gauge("database_up", "1 if the exporter could read the database"),
    _gauge("broker_up", "1 if the exporter could ask Redis"),
    _gauge("queue_length", "Messages that wait in a Celery queue", "queue"),
    _gauge("exporter_seconds", "How long reading all of this took"),
)  # fmt: skip

CATALOG: dict[str, Metric] = {m.name: m for m in _DECLARED}
