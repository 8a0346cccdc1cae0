"""Each alert fires in its bad cases and is silent in normal ones: without data, after a restart,
with little traffic. Evaluated by promtool.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from pool.metrics.catalog import CATALOG
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "warmpool" / "files" / "alerts.yaml"
RUNBOOK = ROOT / "docs" / "runbook.md"
INTERVAL_S = 5
# The error-budget alerts look back for hours.
LONG_INTERVAL_S = 60


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


NAMES = [rule["alert"] for rule in rules()]


@dataclass(frozen=True, kw_only=True)
class AlertCase:
    """Series in promtool's notation, one sample per interval, and the number of firing alerts at a
    time.
    """

    name: str
    alert: str
    fires: int
    at: str
    series: dict[str, str] = field(default_factory=dict)


def flat(value: float, minutes: float, every_s: int = INTERVAL_S) -> str:
    """Return the same value for `minutes` minutes."""
    return f"{value}x{int(minutes * 60 / every_s)}"


def rising(per_minute: float, minutes: float, every_s: int = INTERVAL_S) -> str:
    return f"0+{per_minute * every_s / 60}x{int(minutes * 60 / every_s)}"


def acquires(good: float | str, bad: float | str, reason: str = "no_warm_worker") -> dict[str, str]:
    """Return series with this many granted and refused requests per minute, or the given series."""
    long = [v if isinstance(v, str) else rising(v, 400, LONG_INTERVAL_S) for v in (good, bad)]
    return {
        'warmpool_acquires_total{profile="default",outcome="granted",reason=""}': long[0],
        f'warmpool_acquires_total{{profile="default",outcome="refused",reason="{reason}"}}': long[1],
    }


def a_pass(
    age: str, *, name: str = "reap", paused: int = 0, ever: int = 1, period: int = 5
) -> dict[str, str]:
    long = flat(period, 60)
    return {
        f'warmpool_pass_last_success_age_seconds{{pass="{name}"}}': age,
        f'warmpool_pass_last_attempt_age_seconds{{pass="{name}"}}': age,
        f'warmpool_pass_period_seconds{{pass="{name}"}}': long,
        f'warmpool_pass_paused{{pass="{name}"}}': flat(paused, 60),
        f'warmpool_pass_ever_succeeded{{pass="{name}"}}': flat(ever, 60),
    }


def failing(in_a_row: str, *, name: str = "reap", paused: int = 0) -> dict[str, str]:
    return {
        f'warmpool_pass_failures_in_a_row{{pass="{name}"}}': in_a_row,
        f'warmpool_pass_paused{{pass="{name}"}}': flat(paused, 60),
    }


FAST, SLOW = "WarmpoolAcquireBudgetBurnsFast", "WarmpoolAcquireBudgetBurnsSlowly"
CASES = [
    AlertCase(name="a third is refused", alert=FAST, fires=1, at="20m", series=acquires(60, 30)),
    AlertCase(name="a third is refused, slowly", alert=SLOW, fires=1, at="40m", series=acquires(60, 30)),
    AlertCase(name="one in ten, for hours", alert=SLOW, fires=1, at="300m", series=acquires(90, 10)),
    AlertCase(name="one in ten is no page", alert=FAST, fires=0, at="50m", series=acquires(90, 10)),
    AlertCase(name="one in two hundred", alert=SLOW, fires=0, at="50m", series=acquires(199, 1)),
    AlertCase(name="little traffic, all of it refused", alert=FAST, fires=0, at="10m", series=acquires(0, 1)),
    AlertCase(name="little traffic, half of it refused", alert=SLOW, fires=0, at="60m", series=acquires(1, 1)),
    AlertCase(name="no traffic at all", alert=FAST, fires=0, at="20m", series=acquires("7x60", "7x60")),
    AlertCase(name="refusals at the org's own cap", alert=FAST, fires=0, at="20m", series=acquires(60, 60, "org_cap")),
    AlertCase(name="two bad minutes that are over", alert=FAST, fires=0, at="30m", series=acquires(60, "0 60 120x60")),
    # Counters that restart at zero are no refusals.
    AlertCase(name="restart", alert=FAST, fires=0, at="20m", series=acquires("0+600x10 0+600x20", "0+1x10 0+1x20")),

    AlertCase(name="empty for two minutes", alert="WarmpoolWarmEmpty", fires=1, at="3m", series={
        'warmpool_workers{profile="default",state="idle"}': f"3x11 {flat(0, 10)}",
        'warmpool_warm_target{profile="default"}': flat(3, 10)}),
    AlertCase(name="none are wanted", alert="WarmpoolWarmEmpty", fires=0, at="5m", series={
        'warmpool_workers{profile="default",state="idle"}': flat(0, 10),
        'warmpool_warm_target{profile="default"}': flat(0, 10)}),
    AlertCase(name="empty for a moment", alert="WarmpoolWarmEmpty", fires=0, at="5m", series={
        'warmpool_workers{profile="default",state="idle"}': "3x10 0x6 3x100",
        'warmpool_warm_target{profile="default"}': flat(3, 10)}),
    AlertCase(name="only the other profile is empty", alert="WarmpoolWarmEmpty", fires=1, at="5m", series={
        'warmpool_workers{profile="a",state="idle"}': flat(2, 10),
        'warmpool_warm_target{profile="a"}': flat(3, 10),
        'warmpool_workers{profile="b",state="idle"}': flat(0, 10),
        'warmpool_warm_target{profile="b"}': flat(3, 10)}),

    AlertCase(name="full", alert="WarmpoolAtCap", fires=1, at="6m", series={
        "warmpool_live_workers": flat(10, 10), "warmpool_max_workers": flat(10, 10)}),
    AlertCase(name="no cap", alert="WarmpoolAtCap", fires=0, at="9m", series={
        "warmpool_live_workers": flat(10, 10), "warmpool_max_workers": flat(0, 10)}),
    AlertCase(name="one below", alert="WarmpoolAtCap", fires=0, at="9m", series={
        "warmpool_live_workers": flat(9, 10), "warmpool_max_workers": flat(10, 10)}),

    AlertCase(name="five at once", alert="WarmpoolClaimsLost", fires=1, at="5m", series={
        'warmpool_claims_ended_total{why="worker_lost"}': "0x20 5x100"}),
    AlertCase(name="one alone", alert="WarmpoolClaimsLost", fires=0, at="5m", series={
        'warmpool_claims_ended_total{why="worker_lost"}': "0x20 1x100"}),
    AlertCase(name="restart", alert="WarmpoolClaimsLost", fires=0, at="5m", series={
        'warmpool_claims_ended_total{why="worker_lost"}': "9x20 0x100"}),
    AlertCase(name="released as they should be", alert="WarmpoolClaimsLost", fires=0, at="5m", series={
        'warmpool_claims_ended_total{why="released"}': rising(1000, 10)}),

    AlertCase(name="silent for half a minute", alert="WarmpoolPassDark", fires=1, at="40s", series=a_pass("0+5x200")),
    AlertCase(name="three periods are not over", alert="WarmpoolPassDark", fires=0, at="15s", series=a_pass("0+5x200")),
    AlertCase(name="well", alert="WarmpoolPassDark", fires=0, at="10m", series=a_pass(flat(4, 20))),
    AlertCase(name="paused", alert="WarmpoolPassDark", fires=0, at="10m", series=a_pass("0+5x200", paused=1)),
    AlertCase(name="seldom by nature", alert="WarmpoolPassDark", fires=0, at="40m", series=a_pass("0+5x700", name="collect_garbage", period=3600)),
    AlertCase(name="one slow run", alert="WarmpoolPassDark", fires=0, at="2m", series=a_pass("4x5 18 3x100")),
    AlertCase(name="the exporter restarts", alert="WarmpoolPassDark", fires=0, at="2m", series=a_pass("4x5 _x6 4x100")),

    AlertCase(name="three consecutive runs", alert="WarmpoolPassFailing", fires=1, at="3m", series=failing(f"0 1 2 {flat(3, 10)}")),
    AlertCase(name="an hourly pass", alert="WarmpoolPassFailing", fires=1, at="3m", series=failing(flat(3, 10), name="collect_garbage")),
    AlertCase(name="two consecutive runs", alert="WarmpoolPassFailing", fires=0, at="9m", series=failing(flat(2, 10))),
    AlertCase(name="it succeeds in between", alert="WarmpoolPassFailing", fires=0, at="9m", series=failing(" ".join(["1 2 3 4 0"] * 30))),
    AlertCase(name="paused while it failed", alert="WarmpoolPassFailing", fires=0, at="9m", series=failing(flat(9, 10), paused=1)),

    AlertCase(name="one of three missing", alert="WarmpoolHeadroomMissing", fires=1, at="17m", series={
        'warmpool_headroom_wanted{profile="gpu"}': flat(3, 30), 'warmpool_headroom_pods{profile="gpu"}': flat(2, 30),
        'warmpool_headroom_wanted{profile="default"}': flat(3, 30), 'warmpool_headroom_pods{profile="default"}': flat(3, 30)}),
    AlertCase(name="a node is being added", alert="WarmpoolHeadroomMissing", fires=0, at="17m", series={
        'warmpool_headroom_wanted{profile="gpu"}': flat(3, 30), 'warmpool_headroom_pods{profile="gpu"}': f"2x60 {flat(3, 30)}"}),
    AlertCase(name="no headroom is wanted", alert="WarmpoolHeadroomMissing", fires=0, at="17m", series={
        'warmpool_headroom_wanted{profile="gpu"}': flat(0, 30), 'warmpool_headroom_pods{profile="gpu"}': flat(0, 30)}),

    AlertCase(name="five minutes after the beginning", alert="WarmpoolPassNeverReported", fires=1, at="5m", series=a_pass("0+5x200", ever=0)),
    AlertCase(name="a new database", alert="WarmpoolPassNeverReported", fires=0, at="90s", series=a_pass("0+5x200", ever=0)),
    AlertCase(name="paused from the beginning", alert="WarmpoolPassNeverReported", fires=0, at="5m", series=a_pass("0+5x200", ever=0, paused=1)),
    AlertCase(name="reported, and dark since", alert="WarmpoolPassNeverReported", fires=0, at="5m", series=a_pass("0+5x200")),

    AlertCase(name="nothing is tried", alert="WarmpoolBeatDark", fires=1, at="40s", series={
        **a_pass("0+5x200"), **a_pass("0+5x200", name="guard_disruption", period=2)}),
    AlertCase(name="one pass is dark, others are tried", alert="WarmpoolBeatDark", fires=0, at="5m", series={
        **a_pass("0+5x200"), **a_pass(flat(1, 20), name="guard_disruption", period=2)}),
    AlertCase(name="all are paused", alert="WarmpoolBeatDark", fires=0, at="5m", series=a_pass("0+5x200", paused=1)),

    AlertCase(name="messages wait, no worker is busy", alert="WarmpoolConsumersStalled", fires=1, at="5m", series={
        'warmpool_queue_length{queue="fleet"}': flat(9, 10),
        'warmpool_tasks_total{queue="fleet",task="pool.spawn",outcome="success"}': flat(50, 10)}),
    AlertCase(name="messages wait, no worker exists", alert="WarmpoolConsumersStalled", fires=1, at="5m", series={
        'warmpool_queue_length{queue="fleet"}': flat(9, 10)}),
    AlertCase(name="busy, and behind", alert="WarmpoolConsumersStalled", fires=0, at="5m", series={
        'warmpool_queue_length{queue="fleet"}': flat(9, 10),
        'warmpool_tasks_total{queue="fleet",task="pool.spawn",outcome="success"}': rising(60, 10)}),
    AlertCase(name="nothing waits", alert="WarmpoolConsumersStalled", fires=0, at="5m", series={'warmpool_queue_length{queue="fleet"}': flat(0, 10)}),
    AlertCase(name="canaries do not come through", alert="WarmpoolConsumersStalled", fires=1, at="5m", series={
        "warmpool_canary_age_seconds": "0+5x200", **a_pass(flat(3, 20))}),
    AlertCase(name="no canaries are sent", alert="WarmpoolConsumersStalled", fires=0, at="5m", series={
        "warmpool_canary_age_seconds": "0+5x200", **a_pass("0+5x200")}),

    AlertCase(name="fifty leak", alert="WarmpoolIdleOverdue", fires=1, at="2m", series={
        'warmpool_idle_overdue{profile="default",kind="parked"}': f"0x3 {flat(50, 10)}"}),
    AlertCase(name="a moment late", alert="WarmpoolIdleOverdue", fires=0, at="2m", series={
        'warmpool_idle_overdue{profile="default",kind="parked"}': "0x3 5x3 0x100"}),
    AlertCase(name="none", alert="WarmpoolIdleOverdue", fires=0, at="9m", series={
        'warmpool_idle_overdue{profile="default",kind="parked"}': flat(0, 10)}),

    AlertCase(name="stays so", alert="WarmpoolBusyUnprotected", fires=1, at="1m", series={"warmpool_busy_unprotected": flat(2, 10)}),
    AlertCase(name="not for long yet", alert="WarmpoolBusyUnprotected", fires=0, at="20s", series={"warmpool_busy_unprotected": flat(2, 10)}),
    AlertCase(name="claimed just now", alert="WarmpoolBusyUnprotected", fires=0, at="2m", series={"warmpool_busy_unprotected": "0 1 0 2 0 1x2 0x100"}),

    AlertCase(name="not removed", alert="WarmpoolOrphans", fires=1, at="15m", series={"warmpool_orphans": flat(1, 20)}),
    AlertCase(name="not removed yet", alert="WarmpoolOrphans", fires=0, at="5m", series={"warmpool_orphans": flat(3, 20)}),
    AlertCase(name="removed by the next sweep", alert="WarmpoolOrphans", fires=0, at="15m", series={"warmpool_orphans": "3x12 0x300"}),

    AlertCase(name="its breaker is open", alert="WarmpoolSpawnFailing", fires=1, at="3m", series={
        'warmpool_breaker_open{profile="default"}': flat(1, 10)}),
    AlertCase(name="one in a while fails", alert="WarmpoolSpawnFailing", fires=0, at="10m", series={
        'warmpool_breaker_open{profile="default"}': flat(0, 10),
        'warmpool_spawn_failures_total{profile="default",reason="not_ready"}': "0x30 1x30 2x60"}),
    AlertCase(name="many fail among others that do not", alert="WarmpoolSpawnFailing", fires=1, at="9m", series={
        'warmpool_breaker_open{profile="default"}': flat(0, 10),
        'warmpool_spawn_failures_total{profile="default",reason="not_ready"}': rising(2, 10)}),
    AlertCase(name="restart", alert="WarmpoolSpawnFailing", fires=0, at="9m", series={
        'warmpool_spawn_failures_total{profile="default",reason="not_ready"}': "90x30 0x100"}),

    AlertCase(name="a verb is missing", alert="WarmpoolApiForbidden", fires=1, at="2m", series={
        'warmpool_api_calls_total{verb="patch",resource="pods",code="403"}': f"0 {rising(30, 10)}"}),
    AlertCase(name="nodes need not be readable", alert="WarmpoolApiForbidden", fires=0, at="2m", series={
        'warmpool_api_calls_total{verb="list",resource="nodes",code="403"}': f"0 {rising(30, 10)}"}),
    AlertCase(name="other answers", alert="WarmpoolApiForbidden", fires=0, at="2m", series={
        'warmpool_api_calls_total{verb="patch",resource="pods",code="409"}': rising(30, 10)}),
    AlertCase(name="long ago", alert="WarmpoolApiForbidden", fires=0, at="9m", series={
        'warmpool_api_calls_total{verb="patch",resource="pods",code="403"}': "0x5 4x200"}),

    AlertCase(name="a service without a key", alert="WarmpoolRequestsUnproven", fires=1, at="6m", series={
        'warmpool_requests_unproven_total{trouble="unsigned"}': f"0 {rising(30, 10)}"}),
    AlertCase(name="two troubles are two alerts", alert="WarmpoolRequestsUnproven", fires=2, at="6m", series={
        'warmpool_requests_unproven_total{trouble="unsigned"}': f"0 {rising(30, 10)}",
        'warmpool_requests_unproven_total{trouble="mismatch"}': f"0 {rising(30, 10)}"}),
    AlertCase(name="a few that had expired", alert="WarmpoolRequestsUnproven", fires=0, at="6m", series={
        'warmpool_requests_unproven_total{trouble="expired"}': "0x5 4x200"}),
    AlertCase(name="a worker restarts", alert="WarmpoolRequestsUnproven", fires=0, at="6m", series={
        'warmpool_requests_unproven_total{trouble="unsigned"}': "90x10 0x200"}),

    AlertCase(name="nothing is scraped", alert="WarmpoolExporterDown", fires=1, at="4m"),
    AlertCase(name="it answers", alert="WarmpoolExporterDown", fires=0, at="4m", series={"warmpool_database_up": flat(1, 10)}),
    AlertCase(name="it answers that the database is down", alert="WarmpoolExporterDown", fires=0, at="4m", series={"warmpool_database_up": flat(0, 10)}),
    AlertCase(name="it restarts", alert="WarmpoolExporterDown", fires=0, at="4m", series={"warmpool_database_up": "1x10 _x12 1x100"}),
    AlertCase(name="away", alert="WarmpoolDatabaseDown", fires=1, at="2m", series={"warmpool_database_up": flat(0, 10)}),
    AlertCase(name="there", alert="WarmpoolDatabaseDown", fires=0, at="2m", series={"warmpool_database_up": flat(1, 10)}),
    AlertCase(name="away", alert="WarmpoolBrokerDown", fires=1, at="2m", series={"warmpool_broker_up": flat(0, 10)}),
    AlertCase(name="there", alert="WarmpoolBrokerDown", fires=0, at="2m", series={"warmpool_broker_up": flat(1, 10)}),
    AlertCase(name="once", alert="WarmpoolBrokerEmptied", fires=1, at="2m", series={"warmpool_broker_emptied_total": "0x10 1x100"}),
    AlertCase(name="long ago", alert="WarmpoolBrokerEmptied", fires=0, at="8m", series={"warmpool_broker_emptied_total": "0x10 1x100"}),
    AlertCase(name="the exporter restarts", alert="WarmpoolBrokerEmptied", fires=0, at="2m", series={"warmpool_broker_emptied_total": "3x10 0x100"}),
    *(AlertCase(name="no data", alert=name, fires=0, at="30m") for name in NAMES if name != "WarmpoolExporterDown"),
]  # fmt: skip


@pytest.mark.parametrize("alert", NAMES)
def test_alert_fires_in_its_bad_cases_and_in_no_other(alert: str, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.alert == alert]
    assert {bool(case.fires) for case in cases} == {True, False}, "a case that fires and one that does not"
    every = f"{LONG_INTERVAL_S if alert in {FAST, SLOW} else INTERVAL_S}s"
    tests = [
        {
            "name": case.name,
            "interval": every,
            "input_series": [{"series": s, "values": v} for s, v in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'sum(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                    "eval_time": case.at,
                    "exp_samples": [{"labels": "{}", "value": case.fires}],
                }
            ],
        }
        for case in cases
    ]
    file, alone = tmp_path / "tests.yaml", tmp_path / "alone.yaml"
    rule = next(rule for rule in rules() if rule["alert"] == alert)
    alone.write_text(yaml.safe_dump({"groups": [{"name": "alone", "rules": [rule]}]}))
    content = {"rule_files": [str(alone)], "evaluation_interval": every, "tests": tests}
    file.write_text(yaml.safe_dump(content))
    judged = promtool("test", "rules", str(file))
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_promtool_accepts_the_alert_rules() -> None:
    judged = promtool("check", "rules", str(RULES))
    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_every_alert_has_a_section_in_the_runbook_and_points_to_it() -> None:
    headings = re.findall(r"^### (Warmpool\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    assert sorted(headings) == sorted(NAMES)
    for rule in rules():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"page", "ticket"}


def test_alerts_use_only_metrics_and_labels_that_exist() -> None:
    series = {name: m for m in CATALOG.values() for name in m.series}
    for rule in rules():
        used = re.findall(r"(warmpool_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert used, rule["alert"]
        for name, selector in used:
            assert name in series, f"{rule['alert']}: no metric {name}"
            for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
                assert label in series[name].labels, f"{rule['alert']}: {name} has no label {label}"
