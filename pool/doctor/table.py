"""What the table tells: the same worries that `status` has, each with what to do about it; counters; rows of profiles that are gone, and
of master keys that are."""

from __future__ import annotations

from collections.abc import Iterator

from pool import config, reporting
from pool.doctor.finding import Finding, Level, Patient, ok
from pool.states import CLAIMED, LIVE
from pool.store import looking, orgs, workers
from pool.store.looking import Wanted

# What to do, by the first word of a worry's id.
REMEDIES = {
    "beat_dark": "start beat: warmpool beat; see that it and the pass workers reach Redis",
    "lane_closed": "see that acquire workers run: warmpool worker acquire",
    "pass_dark": "see the pass workers' log for why; warmpool pass run NAME --dry-run tries it here",
    "pass_failing": "its detail says why; the next period tries again",
    "rollout_halted": "mend the new image or take the change back; the old workers serve on",
    "spawn_failing": "mend what it names; it is tried again by itself, ever less often",
    "warm_empty": "raise the warm target if this lasts: warmpool profile set-warm NAME N",
    "waiting": "warmpool explain REQUEST says what it waits for",
    "idle_overdue": "reap takes surplus away: see warmpool passes",
    "parked_overdue": "reap takes them away: see warmpool passes",
    "orphan": "a pod that says it is busy is never deleted: end its session, or delete the pod by hand",
    "row_without_pod": "the next sweep decides; if many, see whether the cluster's API lists all pods",
    "empty_cluster": "see whether the cluster's API really lists no pods; rows end after a minute of proof",
    "refused": "mend what refuses it (an admission webhook or policy), or remove the thing by hand; everything else goes on",
    "leaving": "its holder was told; it leaves when its claim ends",
    "paused": "warmpool resume",
    "pass_paused": "warmpool pass resume NAME",
}
_SEVERITY = {"bad": Level.BAD, "warn": Level.WARN}


def worries(patient: Patient) -> Iterator[Finding]:
    """What `status` worries about."""
    found = reporting.status(patient.store, patient.settings)["worries"]
    for worry in found:
        kind = worry["id"].partition(":")[0]
        yield Finding(
            id=worry["id"],
            level=_SEVERITY[worry["level"]],
            evidence=worry["text"],
            fix=REMEDIES.get(kind, ""),
        )
    if not found:
        yield ok("status", "no worries")


def counters(patient: Patient) -> Iterator[Finding]:
    """Counters that are not what they count: a bug, or somebody's hand in the database."""
    with patient.store.snapshot() as tx:
        wrong = orgs.miscounted(tx)
    for sentence in wrong:
        yield Finding(
            id="counters", level=Level.BAD, evidence=sentence, fix="tell the maintainers, with the journal"
        )
    if not wrong:
        yield ok("counters", "caps and floors count what is there")


def strangers(patient: Patient) -> Iterator[Finding]:
    """Live workers of profiles that nobody configures any more. They leave by themselves, unless `reconcile_warm` stands still."""
    with patient.store.read() as tx:
        known = set(patient.settings.profiles)
        strange = [w for w in looking.workers(tx, Wanted(limit=10_000)) if w.profile not in known]
    for profile in sorted({w.profile for w in strange}):
        those = [w for w in strange if w.profile == profile]
        busy = sum(w.state in CLAIMED for w in those)
        yield Finding(
            id=f"unknown_profile:{profile}", level=Level.WARN,
            evidence=f"{len(those)} workers of profile {profile} live, {busy} of them in use, and it is not configured here",
            fix="taken out on purpose: those not in use leave after a minute, the others when they are released (see warmpool passes: reconcile_warm); otherwise put it back",
        )  # fmt: skip


def old_keys(patient: Patient) -> Iterator[Finding]:
    """Live workers that were made under another master key than the one in use."""
    if not config.has_master_key(patient.settings):
        return
    keys = config.keyring(patient.settings)
    with patient.store.read() as tx:
        old = [w.id for w in workers.live(tx, states=LIVE) if not keys.is_current(w.id)]
    unknown = [i for i in old if not keys.knows(i)]
    if unknown:
        yield Finding(
            id="unknown_master_key",
            level=Level.BAD,
            evidence=f"{len(unknown)} live workers were made under a master key that is not given, {unknown[0]} among them",
            fix="give it as master_key_previous; otherwise those that are not in use leave once a newer worker was made under the key in use (reap), the others when they are released",
        )
    if len(old) > len(unknown):
        yield Finding(
            id="old_master_key",
            level=Level.WARN,
            evidence=f"{len(old) - len(unknown)} live workers were made under another master key than the one in use",
            fix="keep master_key_previous until they have gone; warmpool drain worker NAME makes one go",
        )
    if not old:
        yield ok("master_key", "every live worker was made under the master key in use")
