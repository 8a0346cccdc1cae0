"""Checks of the pool's tables: the problems of `status` with a fix for each; counters; workers of
profiles or master keys that are no longer configured."""

from __future__ import annotations

from collections.abc import Iterator

from pool import config
from pool.core.states import CLAIMED, LIVE
from pool.ops import reporting
from pool.ops.doctor import ceiling
from pool.ops.doctor.finding import Finding, Installation, Level, ok
from pool.store import operator_queries, orgs, workers
from pool.store.operator_queries import ListFilter

# What to do, by the part of the id before the colon.
REMEDIES = {
    "beat_dark": "start beat (warmpool beat), and check that beat and the pass workers can reach Redis",
    "lane_closed": "check that acquire workers run: warmpool worker acquire",
    "pass_dark": "read the log of the pass workers; to try the pass here: warmpool pass run NAME --dry-run",
    "pass_failing": "fix the cause in its detail; the pass is retried every period",
    "rollout_halted": "fix the new image, or revert the change; the old workers keep serving",
    "spawn_failing": "fix the cause in the message; starts are retried automatically, with growing pauses",
    "none_ready": "if this lasts, its program does not become ready: it must answer readiness_path on the "
    "port in PORT; see the end of its log with: warmpool explain WORKER; check the program with: "
    "warmpool worker check --command CMD",
    "outdated": "restart the pool: stop `warmpool up` and start it again; in a cluster: helm upgrade. "
    "If it is the file of another pool, name the right one with --config",
    "warm_empty": "raise the warm target if this lasts: warmpool profile set-warm NAME N",
    "waiting": "to see what a request waits for: warmpool explain REQUEST",
    "idle_overdue": "the pass reap should remove them; check it with: warmpool passes",
    "parked_overdue": "the pass reap should remove them; check it with: warmpool passes",
    "orphan": "a pod that reports an open session is never deleted: end the session; one that does not "
    "answer: warmpool orphan delete NAME, if you know that it is unused",
    "node_ceiling": "see the message; pass workers check it again every 10 minutes",
    "headroom": "see why its placeholders do not run: no node has room, or they are refused",
    "row_without_pod": "wait for the next sweep; if there are many, check that the API server lists all pods",
    "empty_cluster": "check that the API server lists no pods; if so, the rows end after one minute",
    "refused": "fix what refuses it (an admission webhook or policy), or delete the object by "
    "hand; other objects are not affected",
    "leaving": "nothing to do: its holder has been informed, and the worker leaves when its claim ends",
    "unhealthy": "its holder has been informed and may release it; to end the claim now: "
    "warmpool retire WORKER",
    "paused": "run: warmpool resume",
    "pass_paused": "run: warmpool pass resume NAME",
}
_SEVERITY = {"bad": Level.BAD, "warn": Level.WARN}


def worries(installation: Installation) -> Iterator[Finding]:
    """Report the problems of `status`, except what was just checked again here."""
    found = reporting.status(installation.store, installation.settings)["worries"]
    if installation.cluster_answers:
        found = [w for w in found if w["id"].partition(":")[0] != ceiling.ID]
    for worry in found:
        kind = worry["id"].partition(":")[0]
        yield Finding(
            id=worry["id"],
            level=_SEVERITY[worry["level"]],
            evidence=worry["text"],
            fix=REMEDIES.get(kind, ""),
        )
    if not found:
        yield ok("status", "no problems")


def counters(installation: Installation) -> Iterator[Finding]:
    """Check that the counters match the rows they count. A difference is a bug, or a manual change of the
    database."""
    with installation.store.snapshot() as tx:
        wrong = orgs.miscounted(tx)
    for sentence in wrong:
        yield Finding(
            id="counters",
            level=Level.BAD,
            evidence=sentence,
            fix="report this to the maintainers, and attach the journal",
        )
    if not wrong:
        yield ok("counters", "the counters match the rows")


def strangers(installation: Installation) -> Iterator[Finding]:
    """Report live workers of profiles that are not configured. `reconcile_warm` drains them."""
    with installation.store.read() as tx:
        known = set(installation.settings.profiles)
        strange = [
            w for w in operator_queries.workers(tx, ListFilter(limit=10_000)) if w.profile not in known
        ]
    for profile in sorted({w.profile for w in strange}):
        those = [w for w in strange if w.profile == profile]
        busy = sum(w.state in CLAIMED for w in those)
        yield Finding(
            id=f"unknown_profile:{profile}", level=Level.WARN,
            evidence=f"{len(those)} live workers ({busy} in use) have profile {profile}, which is "
                     "not configured here",
            fix="if the profile was removed by mistake, add it again; otherwise do nothing: "
                "reconcile_warm drains workers that are not in use after a minute, and the others "
                "when they are released",
        )  # fmt: skip


def old_keys(installation: Installation) -> Iterator[Finding]:
    """Report live workers that were created with another master key than the current one."""
    if not config.has_master_key(installation.settings):
        return
    keys = config.keyring(installation.settings)
    with installation.store.read() as tx:
        old = [w.id for w in workers.live(tx, states=LIVE) if not keys.is_current(w.id)]
    unknown = [i for i in old if not keys.knows(i)]
    if unknown:
        yield Finding(
            id="unknown_master_key",
            level=Level.BAD,
            evidence=f"{len(unknown)} live workers were created with a master key that is not "
            f"configured, for example {unknown[0]}",
            fix="set the old key as master_key_previous; without it, reap drains those that are "
            "not in use once a worker "
            "has been created with the current key, and the others when they are released",
        )
    if len(old) > len(unknown):
        yield Finding(
            id="old_master_key",
            level=Level.WARN,
            evidence=f"{len(old) - len(unknown)} live workers were created with the previous master key",
            fix="keep master_key_previous until they have ended; to end one: warmpool drain worker ID",
        )
    if not old:
        yield ok("master_key", "every live worker was created with the current master key")
