"""Generate the Grafana dashboard from one table. The output is `charts/warmpool/files/dashboard.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_WIDTH = 24
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Metrics without a panel, and the reason.
NOT_SHOWN: dict[str, str] = {
    "orgs": "needs no action",
    "exporter_seconds": "relevant only if the exporter is slow",
    "pass_period_seconds": "a constant that alerts compare with",
    "pass_ever_succeeded": "covered by an alert; always 1 after the first success",
    "pass_last_attempt_age_seconds": "covered by an alert; the age of the last success is shown",
    "pass_last_duration_seconds": "the histogram pass_seconds is shown",
    "org_cap": "shown as the used share of the cap",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: its queries with their legends."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    doc: str = ""


def _quantile(q: float, metric: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({labels}) (rate(warmpool_{metric}_bucket[$__rate_interval])))"


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate(warmpool_{metric}_total{where}[$__rate_interval]))"


_BAD = 'reason=~"no_warm_worker|pool_cap|wait_timeout|activation_failed"'
ROWS: dict[str, tuple[Panel, ...]] = {
    "Acquires": (
        Panel(
            title="Acquires with a worker",
            kind="stat",
            unit="percentunit",
            width=4,
            doc="Share over the last hour; the objective is 99 %. Refusals at an org's own cap and of invalid input do not count.",
            queries=((f"1 - (sum(rate(warmpool_acquires_total{{{_BAD}}}[1h])) or vector(0)) / sum(rate(warmpool_acquires_total[1h]))", ""),),
        ),
        Panel(title="Waiting now", kind="stat", width=4, queries=(("sum(warmpool_waiting_requests)", ""),)),
        Panel(title="Oldest wait", kind="stat", unit="s", width=4, queries=(("max(warmpool_waiting_oldest_seconds)", ""),)),
        Panel(
            title="Hit rate",
            kind="stat",
            unit="percentunit",
            width=4,
            doc="Share of acquires that found a free worker at once.",
            queries=(("1 - sum(rate(warmpool_misses_total[1h])) / sum(rate(warmpool_acquire_phase_seconds_count{phase=\"claim\"}[1h]))", ""),),
        ),
        Panel(title="Pool paused", kind="stat", width=4, doc="1 while an operator has paused the pool.", queries=(("max(warmpool_pool_paused)", "paused"),)),
        Panel(title="Versions", kind="stat", width=4, queries=(("count by (version) (warmpool_build_info)", "{{version}}"),)),
        Panel(title="Duration of granted acquires", unit="s", queries=tuple((_quantile(q, "acquire_seconds", "source"), f"p{int(q * 100)} {{{{source}}}}") for q in (0.5, 0.95, 0.99))),
        Panel(title="Duration by phase (p95)", unit="s", queries=((_quantile(0.95, "acquire_phase_seconds", "phase"), "{{phase}}"),)),
        Panel(title="Answers", unit="reqps", stacked=True, queries=((_rate("acquires", "outcome, reason"), "{{outcome}} {{reason}}"),)),
        Panel(title="Misses by reason", unit="reqps", queries=((_rate("misses", "profile, reason"), "{{profile}} {{reason}}"),)),
    ),
    "Pool": (
        Panel(title="Workers by state", stacked=True, queries=(("sum by (state) (warmpool_workers)", "{{state}}"),)),
        Panel(
            title="Idle workers and target",
            queries=(
                ('sum by (profile) (warmpool_workers{state="idle"})', "{{profile}} idle"),
                ("max by (profile) (warmpool_warm_target)", "{{profile}} target"),
            ),
        ),
        Panel(title="Live workers and cap", queries=(("max(warmpool_live_workers)", "live"), ("max(warmpool_max_workers)", "cap (0: none)"))),
        Panel(title="Unused workers overdue for retirement", queries=(("sum by (profile, kind) (warmpool_idle_overdue)", "{{profile}} {{kind}}"),)),
    ),
    "Orgs": (
        Panel(title="Live claims by org", width=12, queries=(("max by (org) (warmpool_org_in_use)", "{{org}}"),)),
        Panel(title="Used share of the org's cap", unit="percentunit", width=12, queries=(("max by (org) (warmpool_org_in_use / (warmpool_org_cap > 0))", "{{org}}"),)),
    ),
    "Churn": (
        Panel(title="Moves", unit="ops", queries=((_rate("moves", "from, to"), "{{from}} to {{to}}"),)),
        Panel(title="Retired, by reason", unit="ops", queries=((_rate("moves", "reason", '{to="draining"}'), "{{reason}}"),)),
        Panel(title="Lost, by reason", unit="ops", queries=((_rate("moves", "reason", '{to="lost"}'), "{{reason}}"),)),
        Panel(title="Claims ended", unit="ops", queries=((_rate("claims_ended", "why"), "{{why}}"),)),
        Panel(title="Spawn duration, slot to ready", unit="s", queries=tuple((_quantile(q, "spawn_seconds", "profile"), f"p{int(q * 100)} {{{{profile}}}}") for q in (0.5, 0.95))),
        Panel(title="Spawns in flight", queries=(("sum(warmpool_spawns_in_flight)", "in flight"), ("sum(warmpool_spawn_limit)", "limit"))),
        Panel(title="Failed spawns and activations", unit="ops", queries=((_rate("spawn_failures", "profile, reason"), "{{profile}} {{reason}}"), (_rate("activation_failures", "profile"), "{{profile}} activation"))),
        Panel(title="Breakers", queries=(("max by (profile) (warmpool_breaker_open)", "{{profile}} open"), ("max by (profile) (warmpool_breaker_failures)", "{{profile}} consecutive failures"))),
        Panel(title="Messages dropped", unit="ops", queries=(("sum by (reason) (rate(warmpool_messages_refused_total[$__rate_interval]))", "{{reason}}"),)),
        Panel(title="Requests refused because of their signature", unit="ops", queries=(("sum by (trouble) (rate(warmpool_requests_unproven_total[$__rate_interval]))", "{{trouble}}"),)),
        Panel(title="Releases that failed to park", unit="ops", queries=(("sum(rate(warmpool_park_failures_total[$__rate_interval]))", "park failures"),)),
    ),
    "Passes": (
        Panel(title="Time since the last success", unit="s", queries=(("max by (pass) (warmpool_pass_last_success_age_seconds)", "{{pass}}"),)),
        Panel(title="Runs", unit="ops", queries=((_rate("pass_runs", "pass, outcome"), "{{pass}} {{outcome}}"),)),
        Panel(title="Duration (p95)", unit="s", queries=((_quantile(0.95, "pass_seconds", "pass"), "{{pass}}"),)),
        Panel(title="Actions", unit="ops", queries=((_rate("pass_actions", "pass, action"), "{{pass}} {{action}}"),)),
        Panel(
            title="Locks",
            doc="The instance label shows the holder of the lock.",
            queries=(("warmpool_pass_lock_held > 0", "{{pass}} {{instance}}"), (_rate("pass_lock_lost", "pass"), "{{pass}} lost")),
        ),
        Panel(
            title="Failures, pauses and overflow",
            queries=(
                ("max by (pass) (warmpool_pass_failures_in_a_row)", "{{pass}} failures"),
                ("max by (pass) (warmpool_pass_paused)", "{{pass}} paused"),
                (_rate("pass_overflow", "pass"), "{{pass}} overflow"),
            ),
        ),
        Panel(title="Last attempt by", kind="table", width=12, queries=(("warmpool_pass_holder", "{{pass}} {{holder}}"),)),
        Panel(title="Fallback reap", width=12, queries=(("sum(warmpool_fallback_active)", "active"), ("sum(rate(warmpool_fallback_runs_total[$__rate_interval]))", "runs per second"))),
    ),
    "Guard": (
        Panel(title="Busy but unprotected", kind="stat", width=6, queries=(("max(warmpool_busy_unprotected)", ""),)),
        Panel(title="Unused but protected", kind="stat", width=6, queries=(("max(warmpool_stale_protected)", ""),)),
        Panel(title="Orphaned pods", kind="stat", width=6, queries=(("max(warmpool_orphans)", "all"), ("max(warmpool_orphans_held)", "kept"))),
        Panel(title="Rows without a pod", kind="stat", width=6, queries=(("max(warmpool_rows_without_pod)", ""),)),
        Panel(title="In use and unhealthy", kind="stat", width=6, doc="Workers that failed three consecutive probes. Their holders are informed.", queries=(("max(warmpool_unhealthy_in_use)", ""),)),
    ),
    "Headroom and cost": (
        Panel(title="vCPUs without a claim", stacked=True, doc="Average: vCPU-seconds per second.", queries=(("sum by (reason) (rate(warmpool_idle_vcpu_seconds_total[$__rate_interval]))", "{{reason}}"),)),
        Panel(title="Memory without a claim (GiB)", stacked=True, queries=(("sum by (reason) (rate(warmpool_idle_gib_seconds_total[$__rate_interval]))", "{{reason}}"),)),
        Panel(title="vCPU-hours without a claim, per day", unit="h", queries=(("sum by (profile, reason) (increase(warmpool_idle_vcpu_seconds_total[1d])) / 3600", "{{profile}} {{reason}}"),)),
        Panel(title="Placeholders", queries=(("max by (profile) (warmpool_headroom_pods)", "{{profile}} running"), ("max by (profile) (warmpool_headroom_wanted)", "{{profile}} wanted"))),
    ),
    "Celery": (
        Panel(title="Queue lengths", queries=(("max by (queue) (warmpool_queue_length)", "{{queue}}"),)),
        Panel(title="Tasks", unit="ops", queries=((_rate("tasks", "task, outcome"), "{{task}} {{outcome}}"),)),
        Panel(title="Ticks of beat", unit="ops", queries=((_rate("beat_ticks", "pass"), "{{pass}}"),)),
        Panel(title="Time since the last canary", unit="s", queries=(("max(warmpool_canary_age_seconds)", "age"),)),
    ),
    "Dependencies": (
        Panel(title="Database and Redis", queries=(("min(warmpool_database_up)", "database"), ("min(warmpool_broker_up)", "redis"), ("sum(increase(warmpool_broker_emptied_total[10m]))", "redis emptied"))),
        Panel(title="Calls to the Kubernetes API", unit="reqps", queries=((_rate("api_calls", "verb, resource, code"), "{{verb}} {{resource}} {{code}}"),)),
        Panel(title="Restarted threads and skipped items", queries=((_rate("thread_restarts", "thread"), "restarted {{thread}}"), (_rate("items_left_out", "item"), "skipped {{item}}"))),
        Panel(title="CPU of the control plane", queries=(('rate(process_cpu_seconds_total{job=~"$job"}[$__rate_interval])', "{{instance}}"),)),
    ),
}  # fmt: skip


def queries() -> list[str]:
    """Return every query with Grafana's variables replaced."""
    found = [expr for panels in ROWS.values() for panel in panels for expr, _ in panel.queries]
    return [expr.replace("$__rate_interval", "1m").replace("$job", ".*") for expr in found]


def as_json() -> str:
    """Return the dashboard as Grafana JSON."""
    return json.dumps(_dashboard(), indent=2, sort_keys=True) + "\n"


def _dashboard() -> dict[str, Any]:
    return {
        "title": "warmpool",
        "uid": "warmpool",
        "tags": ["warmpool"],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    yield {
        "name": "job",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(warmpool_build_info, job)", "refId": "job"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": top, "w": _WIDTH, "h": 1}}  # fmt: skip
        number, top, left, tallest = number + 1, top + 1, 0, 0
        for panel in panels:
            height = 4 if panel.kind == "stat" else 8
            if left + panel.width > _WIDTH:
                top, left, tallest = top + tallest, 0, 0
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            yield _panel(panel, number, place)
            number, left, tallest = number + 1, left + panel.width, max(tallest, height)
        top += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    custom = {
        "stacking": {"mode": "normal" if panel.stacked else "none"},
        "fillOpacity": 30 if panel.stacked else 0,
    }
    is_lines = panel.kind == "timeseries"
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.doc,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, **({"custom": custom} if is_lines else {})}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi"}} if is_lines else {},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "expr": expr,
                "legendFormat": legend,
                "datasource": _SOURCE,
                "instant": not is_lines,
                "range": is_lines,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for i, (expr, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip
