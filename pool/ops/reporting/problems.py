"""Problems an operator should look at, worst first. Pure: computed from the status alone, so that
the CLI, the board and scripts show the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pool.core.periods import PERIODS_S
from pool.ops.reporting.stories import because
from pool.store.suspects import SuspectKind

# A shorter wait is normal.
LONG_WAIT_S = 10.0
BAD, WARN = "bad", "warn"


def worries(seen: dict[str, Any]) -> list[dict[str, str]]:
    """Return the problems, each with an id that stays the same while the problem lasts, a level, and a
    sentence."""
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
        yield _worry("beat_dark", BAD, "beat is dark: no pass has been started recently")
    elif seen["pool"]["canary_age_s"] > 6 * PERIODS_S["reap"] and _sends_canaries(seen["passes"].get("reap")):
        age = seen["pool"]["canary_age_s"]
        yield _worry("lane_closed", BAD, f"acquires are not served: no canary has arrived for {age:.0f} s")
    for name, p in seen["passes"].items():
        if p["dark"] and not seen["beat_dark"]:
            because = f": {p['detail']}" if p["outcome"] != "ok" and p["detail"] else ""
            yield _worry(
                f"pass_dark:{name}", BAD, f"pass {name} is dark (no success for three periods){because}"
            )
        elif p["failures"] >= 2:
            yield _worry(
                f"pass_failing:{name}",
                WARN,
                f"pass {name} has {p['failures']} consecutive failures: {p['detail']}",
            )


def _sends_canaries(reap: dict[str, Any] | None) -> bool:
    """Return whether `reap` sends canaries. If it does not run, missing canaries say nothing about
    acquires.
    """
    return reap is not None and not reap["paused"] and not reap["dark"]


def _outside(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for f in seen["forbidden"]:
        yield _worry(
            f"forbidden:{f['call']}",
            BAD,
            f"the API server forbids `{f['call']}`: the Role does not grant it, or a quota is exhausted",
        )
    for s in seen["suspects"]:
        if s["kind"] == SuspectKind.NODE_CEILING:
            yield _worry(s["subject"], WARN, s["detail"])
    if seen["unprotected"]:
        yield _worry(
            "unprotected",
            BAD,
            f"{_workers(seen['unprotected'])} in use can be evicted at any time: the pods have no busy label",
        )
    if at := seen["broker_emptied_at"]:
        yield _worry(
            "broker_emptied",
            WARN,
            f"Redis lost all its data at {at[11:19]} UTC: queued work is sent again from the "
            "database, and no claim is lost",
        )


def _supply(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, p in seen["profiles"].items():
        if p["outdated"]:
            text = f"profile {name} of the configuration file {p['outdated']}: restart the pool to apply it"
            yield _worry(f"outdated:{name}", WARN, text)
        if is_halted(p):
            yield _worry(f"rollout_halted:{name}", BAD, f"profile {name}: {rollout_text(p)}")
        elif p["trouble_until"]:
            yield _worry(f"spawn_failing:{name}", BAD, f"profile {name} cannot start workers: {p['trouble']}")
        elif p["target"] and not p["states"]["idle"]:
            coming = p["states"]["spawning"]
            # Without any worker in use, more of them would not help: those that start must become ready.
            ready = sum(n for state, n in p["states"].items() if state not in ("spawning", "draining"))
            kind, lacks = ("warm_empty", "warm") if ready else ("none_ready", "ready")
            yield _worry(
                f"{kind}:{name}", WARN, f"profile {name} has no {lacks} worker ({_workers(coming)} starting)"
            )
        if p["headroom"]["running"] < p["headroom"]["wanted"]:
            text = "profile {}: {running} of {wanted} placeholders of its headroom are running"
            yield _worry(f"headroom:{name}", WARN, text.format(name, **p["headroom"]))


def _waiting(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for line in seen["waiting"]:
        if line["oldest_s"] > LONG_WAIT_S:
            yield _worry(
                f"waiting:{line['org']}:{line['profile']}",
                WARN,
                f"requests of {line['org']} waiting: {line['waiting']}, the oldest for "
                f"{line['oldest_s']:.0f} s: "
                f"{line['why']}",
            )


def _leaks(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    for name, p in seen["profiles"].items():
        if p["surplus_overdue"]:
            text = (
                f"profile {name} has {_workers(p['surplus_overdue'])} idle above its warm "
                "target past surplus_ttl_s"
            )
            yield _worry(f"idle_overdue:{name}", WARN, text)
    if seen["parked_overdue"]:
        yield _worry("parked_overdue", WARN, f"{_workers(seen['parked_overdue'])} parked past the TTL")
    for s in seen["suspects"]:
        if s["kind"] in {SuspectKind.HELD_POD, SuspectKind.SILENT_POD}:
            yield _worry(f"orphan:{s['subject']}", WARN, s["detail"])
        elif s["kind"] in {SuspectKind.ROW_WITHOUT_POD, SuspectKind.EMPTY_CLUSTER}:
            yield _worry(f"{s['kind']}:{s['subject']}", WARN, f"{s['subject']}: {s['detail']}")
    yield from _refused([s for s in seen["suspects"] if s["kind"] == SuspectKind.REFUSED])
    for w in seen["leaving"]:
        yield _worry(
            f"leaving:{w['id']}",
            WARN,
            f"{w['id']} is in use by {w['org']} and is marked as leaving: "
            f"{because(w['leaving_reason'], w['leaving_detail'])}",
        )
    for w in seen["unhealthy"]:
        text = f"{w['id']} is in use by {w['org']} and failed {w['failed_probes']} consecutive probes"
        yield _worry(f"unhealthy:{w['id']}", WARN, text)


def _refused(suspects: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    """Yield one line for each step of each pass that skips items: items of one step usually have
    one cause.
    """
    kinds: dict[str, list[dict[str, Any]]] = {}
    for s in suspects:
        kinds.setdefault(s["subject"].rpartition("/")[0], []).append(s)
    for kind, those in kinds.items():
        who, _, step = kind.partition("/")
        worst = max(those, key=lambda s: s["runs"])
        thing, more = worst["subject"].rpartition("/")[2], f" and {len(those) - 1} more" if those[1:] else ""
        text = f"{who} skips {thing}{more}: {step} was refused {worst['runs']} times: {worst['detail']}"
        yield _worry(f"refused:{who}:{step}", WARN, text)


def _switches(seen: dict[str, Any]) -> Iterator[dict[str, str]]:
    if seen["pool"]["paused"]:
        yield _worry("paused", WARN, "the pool is paused: every acquire is refused")
    for name, p in seen["passes"].items():
        if p["paused"]:
            yield _worry(
                f"pass_paused:{name}", WARN, f"pass {name} was paused by {p['paused_by'] or 'an operator'}"
            )


def is_halted(profile: dict[str, Any]) -> bool:
    """Return whether the rollout of a profile has stopped because new workers fail to start."""
    return profile["rollout"] is not None and profile["rollout"]["progress"] == "halted"


def rollout_text(profile: dict[str, Any]) -> str:
    """Return the progress of a rollout as a sentence."""
    r = profile["rollout"]
    old = ", ".join(f"{n} {state}" for state, n in r["old"].items() if n)
    if r["progress"] == "halted":
        return f"the rollout of {r['image']} is halted: {r['why']}; the old workers stay ({old})"
    waits = (
        "no room for new workers below max_workers"
        if r["no_room"]
        else "waiting for the first new worker to become ready"
    )
    news = waits if r["no_room"] or r["progress"] == "proving" else f"{r['new']} new"
    return f"rolling out {r['image']}: {news}, {old} to replace"
