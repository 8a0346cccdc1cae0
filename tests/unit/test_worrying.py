"""Findings for operators: each from its cause, the worst first, none in a healthy pool. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from pool.ops.reporting.problems import worries

STATES = {"spawning": 0, "idle": 3, "hot": 0, "hot_idle": 0, "draining": 0}


def a_pass(**changes: Any) -> dict[str, Any]:
    well = {"dark": False, "outcome": "ok", "detail": "", "failures": 0, "paused": False, "paused_by": None}
    return well | changes


def a_profile(**changes: Any) -> dict[str, Any]:
    well = {
        "target": 3, "states": dict(STATES), "headroom": {"wanted": 0, "running": 0}, "surplus_overdue": 0, "outdated": None, "rollout": None, "trouble": None, "trouble_until": None,
    }  # fmt: skip
    return well | changes


def a_pool(**changes: Any) -> dict[str, Any]:
    """A healthy status, except for these."""
    well: dict[str, Any] = {
        "pool": {"paused": False, "canary_age_s": 1.0}, "profiles": {"default": a_profile()}, "passes": {"reap": a_pass()},
        "waiting": [], "suspects": [], "leaving": [], "unhealthy": [], "parked_overdue": 0, "unprotected": 0, "broker_emptied_at": None,
        "forbidden": [], "beat_dark": False,
    }  # fmt: skip
    return well | changes


def line(oldest_s: float) -> dict[str, Any]:
    return {"org": "acme", "profile": "default", "waiting": 2, "oldest_s": oldest_s, "why": "it is full"}


def suspect(kind: str, detail: str) -> dict[str, Any]:
    return {"kind": kind, "subject": "w-1", "runs": 2, "detail": detail}


def test_a_healthy_pool_has_no_findings() -> None:
    assert worries(a_pool()) == []


@pytest.mark.parametrize(
    ("changes", "ident", "level", "text"),
    [
        ({"beat_dark": True}, "beat_dark", "bad", "beat is dark"),
        ({"pool": {"paused": False, "canary_age_s": 31.0}}, "lane_closed", "bad", "no canary has arrived for 31 s"),
        ({"pool": {"paused": True, "canary_age_s": 1.0}}, "paused", "warn", "the pool is paused"),
        ({"passes": {"reap": a_pass(dark=True)}}, "pass_dark:reap", "bad", "pass reap is dark"),
        (
            {"passes": {"reap": a_pass(dark=True, outcome="failed", detail="no database")}},
            "pass_dark:reap", "bad", "pass reap is dark (no success for three periods): no database",
        ),
        ({"passes": {"reap": a_pass(failures=2, detail="so")}}, "pass_failing:reap", "warn", "has 2 consecutive failures: so"),
        ({"passes": {"reap": a_pass(paused=True, paused_by="alice")}}, "pass_paused:reap", "warn", "paused by alice"),
        (
            {"profiles": {"gpu": a_profile(trouble="no image", trouble_until="later")}},
            "spawn_failing:gpu", "bad", "cannot start workers: no image",
        ),
        (
            {"profiles": {"gpu": a_profile(states=STATES | {"idle": 0, "spawning": 2})}},
            "none_ready:gpu", "warn", "no ready worker (2 workers starting)",
        ),
        (
            {"profiles": {"gpu": a_profile(outdated="differs from the one that the running pool uses")}},
            "outdated:gpu", "warn", "restart the pool to apply it",
        ),
        (
            {"profiles": {"gpu": a_profile(states=STATES | {"idle": 0, "hot": 3, "spawning": 2})}},
            "warm_empty:gpu", "warn", "no warm worker (2 workers starting)",
        ),
        ({"profiles": {"gpu": a_profile(headroom={"wanted": 4, "running": 1})}}, "headroom:gpu", "warn", "1 of 4 placeholders"),
        ({"profiles": {"gpu": a_profile(surplus_overdue=50)}}, "idle_overdue:gpu", "warn", "50 workers idle above its warm target"),
        ({"waiting": [line(11)]}, "waiting:acme:default", "warn", "requests of acme waiting: 2, the oldest for 11 s: it is full"),
        ({"parked_overdue": 1}, "parked_overdue", "warn", "1 worker parked past the TTL"),
        ({"parked_overdue": 7}, "parked_overdue", "warn", "7 workers parked past the TTL"),
        ({"suspects": [suspect("held_pod", "in use: held")]}, "orphan:w-1", "warn", "in use: held"),
        ({"suspects": [suspect("row_without_pod", "absent once")]}, "row_without_pod:w-1", "warn", "w-1: absent once"),
        ({"suspects": [suspect("empty_cluster", "seen once")]}, "empty_cluster:w-1", "warn", "w-1: seen once"),
        (
            {"leaving": [{"id": "w-1", "org": "acme", "leaving_reason": "disrupted", "leaving_detail": "its node n-1 is cordoned"}]},
            "leaving:w-1", "warn", "w-1 is in use by acme and is marked as leaving: its node n-1 is cordoned",
        ),
        (
            {"unhealthy": [{"id": "w-1", "org": "acme", "failed_probes": 4}]},
            "unhealthy:w-1", "warn", "w-1 is in use by acme and failed 4 consecutive probes",
        ),
        (
            {"forbidden": [{"call": "patch pods", "age_s": 1.0}]},
            "forbidden:patch pods", "bad", "the API server forbids `patch pods`",
        ),
        ({"suspects": [suspect("node_ceiling", "no limit")]}, "w-1", "warn", "no limit"),
        ({"unprotected": 2}, "unprotected", "bad", "2 workers in use can be evicted at any time"),
        ({"broker_emptied_at": "2026-11-17T03:39:17.000Z"}, "broker_emptied", "warn", "at 03:39:17 UTC"),
    ],
)  # fmt: skip
def test_each_problem_is_a_finding_with_its_level(
    changes: dict[str, Any], ident: str, level: str, text: str
) -> None:
    [told] = worries(a_pool(**changes))
    assert (told["id"], told["level"]) == (ident, level)
    assert text in told["text"]


@pytest.mark.parametrize(
    "changes",
    [
        {"waiting": [line(9)]},
        {"pool": {"paused": False, "canary_age_s": 30.0}},
        {"passes": {"reap": a_pass(failures=1)}},
        {"profiles": {"off": a_profile(target=0, states=STATES | {"idle": 0})}},
        {"profiles": {"gone": a_profile(target=None, states=STATES | {"idle": 0})}},
        {"profiles": {"slow": a_profile(trouble="failed once")}},
        {"suspects": [suspect("orphan", "seen once")]},
    ],
)
def test_normal_values_are_no_findings(changes: dict[str, Any]) -> None:
    assert worries(a_pool(**changes)) == []


@pytest.mark.parametrize(
    ("reap", "told"), [({"paused": True}, "pass_paused:reap"), ({"dark": True}, "pass_dark:reap")]
)
def test_without_reap_a_missing_canary_is_no_finding_about_acquires(reap: dict[str, Any], told: str) -> None:
    late = a_pool(pool={"paused": False, "canary_age_s": 95.0}, passes={"reap": a_pass(**reap)})
    assert [w["id"] for w in worries(late)] == [told]


def test_the_worst_finding_is_first_and_a_dark_beat_replaces_dark_passes() -> None:
    told = worries(a_pool(parked_overdue=1, unprotected=1, passes={"reap": a_pass(failures=3, detail="so")}))
    assert [w["id"] for w in told] == ["unprotected", "pass_failing:reap", "parked_overdue"]
    dark = worries(a_pool(beat_dark=True, passes={"reap": a_pass(dark=True)}))
    assert [w["id"] for w in dark] == ["beat_dark"]
