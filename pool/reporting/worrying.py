"""What an operator should look at, worst first. Pure: from the status alone, so that the CLI, the board and a script see the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pool.periods import PERIODS_S

# A waiter younger than this is what waiting is for.
LONG_WAIT_S = 10.0
BAD, WARN = "bad", "warn"


def worries(seen: dict[str, Any]) -> list[dict[str, str]]:
    """Each with an id that stays the same while it lasts, how bad it is, and a sentence."""
    found = [
        *_passes(seen),
        *_outside(seen),
        *_supply(seen),
        *_waiting(seen),
        *_leaks(seen),
        *_switches(seen),
    ]
    return sorted(found, key=lambda w: w["level"] != BAD)


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _worry(ident: str, level: str, text: str) -> dict[str, str]:
    return {"id": ident, "level": level, "text": text}


def _passes(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    if seen["beat_dark"]:
        yield _worry("beat_dark", BAD, "beat is dark: no pass has been tried lately")
    elif seen["pool"]["canary_age_s"] > 6 * PERIODS_S["reap"] and _sends_canaries(seen["passes"].get("reap")):
        age = seen["pool"]["canary_age_s"]
        yield _worry("lane_closed", BAD, f"acquires are not served: no canary came through for {age:.0f} s")
    for name, p in seen["passes"].items():
        if p["dark"] and not seen["beat_dark"]:
            because = f": {p['detail']}" if p["outcome"] != "ok" and p["detail"] else ""
            yield _worry(f"pass_dark:{name}", BAD, f"pass {name} is dark{because}")
        elif p["failures"] >= 2:
            yield _worry(
                f"pass_failing:{name}", WARN, f"pass {name} failed {p['failures']} times: {p['detail']}"
            )


def _sends_canaries(reap: dict[str, Any] | None) -> bool:
    """A reap that does not run sends none, and then their absence says nothing about acquires."""
    return reap is not None and not reap["paused"] and not reap["dark"]


def _outside(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for f in seen["forbidden"]:
        yield _worry(
            f"forbidden:{f['call']}",
            BAD,
            f"the API server forbids us to {f['call']}: the Role lacks it, or a quota is used up",
        )
    if seen["unprotected"]:
        yield _worry(
            "unprotected",
            BAD,
            f"{_workers(seen['unprotected'])} in use may be evicted at any time: the pods do not say that they are busy",
        )
    if at := seen["broker_emptied_at"]:
        yield _worry(
            "broker_emptied",
            WARN,
            f"Redis lost all that was in it at {at[11:19]} UTC: what was queued is sent again from the table, no claim ends for it",
        )


def _supply(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, p in seen["profiles"].items():
        if is_halted(p):
            yield _worry(f"rollout_halted:{name}", BAD, f"profile {name}: {rollout_text(p)}")
        elif p["trouble_until"]:
            yield _worry(
                f"spawn_failing:{name}", BAD, f"profile {name} can not start workers: {p['trouble']}"
            )
        elif p["target"] and not p["states"]["idle"]:
            coming = p["states"]["spawning"]
            yield _worry(
                f"warm_empty:{name}", WARN, f"profile {name} has no warm worker, {coming} being started"
            )


def _waiting(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for line in seen["waiting"]:
        if line["oldest_s"] > LONG_WAIT_S:
            yield _worry(
                f"waiting:{line['org']}:{line['profile']}",
                WARN,
                f"{line['waiting']} of {line['org']} waiting, the oldest for {line['oldest_s']:.0f} s: {line['why']}",
            )


def _leaks(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, p in seen["profiles"].items():
        if p["surplus_overdue"]:
            yield _worry(
                f"idle_overdue:{name}", WARN, f"profile {name} has {p['surplus_overdue']} idle above its target for too long"
            )  # fmt: skip
    if seen["parked_overdue"]:
        yield _worry("parked_overdue", WARN, f"{_workers(seen['parked_overdue'])} parked past the time")
    for s in seen["suspects"]:
        if s["detail"].endswith(": held"):
            yield _worry(f"orphan:{s['subject']}", WARN, s["detail"])
        elif s["kind"] in {"row_without_pod", "empty_cluster"}:
            yield _worry(f"{s['kind']}:{s['subject']}", WARN, f"{s['subject']}: {s['detail']}")
    yield from _refused([s for s in seen["suspects"] if s["kind"] == "refused"])
    for w in seen["leaving"]:
        yield _worry(
            f"leaving:{w['id']}",
            WARN,
            f"{w['id']} is in use by {w['org']} and must leave: {w['leaving_why']}",
        )


def _refused(suspects: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """What is left out again and again, a line for each step of each pass: all of one kind have one cause, as a rule."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for s in suspects:
        kinds.setdefault(s["subject"].rpartition("/")[0], []).append(s)
    for kind, those in kinds.items():
        who, _, step = kind.partition("/")
        worst = max(those, key=lambda s: s["runs"])
        thing, more = worst["subject"].rpartition("/")[2], f" and {len(those) - 1} more" if those[1:] else ""
        text = f"{who} leaves out {thing}{more}: {step} was refused {worst['runs']} times: {worst['detail']}"
        yield _worry(f"refused:{who}:{step}", WARN, text)


def _switches(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    if seen["pool"]["paused"]:
        yield _worry("paused", WARN, "the pool is paused: acquires are refused")
    for name, p in seen["passes"].items():
        if p["paused"]:
            yield _worry(
                f"pass_paused:{name}", WARN, f"pass {name} is paused by {p['paused_by'] or 'somebody'}"
            )


def is_halted(profile: dict[str, Any]) -> bool:
    """Whether its change of image has stopped because new workers fail."""
    return profile["rollout"] is not None and profile["rollout"]["progress"] == "halted"


def rollout_text(profile: dict[str, Any]) -> str:
    """A change of image that is under way, as a sentence."""
    r = profile["rollout"]
    old = ", ".join(f"{n} {state}" for state, n in r["old"].items() if n)
    if r["progress"] == "halted":
        return f"the rollout of {r['image']} is halted: {r['why']}; the old workers stay ({old})"
    waits = "no room for new ones below max_workers" if r["no_room"] else "waiting for its first worker"
    news = waits if r["no_room"] or r["progress"] == "proving" else f"{r['new']} new"
    return f"rolling out {r['image']}: {news}, {old} to be replaced"
