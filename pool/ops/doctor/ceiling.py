"""How long a leaving node waits for busy workers: the limit of what the guard can protect.

Pass workers check it at the start and then regularly, and record what they find: `status` has no
access to the cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import structlog

from pool.core.clock import SystemClock
from pool.core.errors import PoolError, Refused
from pool.core.settings import Profile, Settings
from pool.drivers.kubernetes.rights import NotAllowed
from pool.ops.doctor.finding import Finding, Installation, Level, ok, unchecked
from pool.store import Store, suspects
from pool.store.suspects import SuspectKind

if TYPE_CHECKING:
    from pool.drivers.kubernetes.cluster_policies import NodePool

log = structlog.get_logger(__name__)

ID = "node_ceiling"
EVERY_S = 600.0
# Until the next try, if the API server or the database did not answer.
AGAIN_S = 60.0
_TURN_S = 5.0
_OUTAGE = "outage"
_WHAT = "how long nodes wait for busy workers"
_SHOWN = 5
_MOST_RECORDED = 20
_GRANT = (
    "set rbac.nodepools=true in the chart's values, or grant `list` on nodepools.karpenter.sh to the "
    "account of the pass workers"
)


def node_ceiling(installation: Installation) -> Iterator[Finding]:
    """Check how long nodes wait for pods: less than a worker's grace period ends sessions, and no limit
    blocks the node."""
    if not installation.cluster_answers:
        return
    try:
        nodepools = installation.cluster.nodepools()
    except (NotAllowed, Refused) as exc:
        fix = _GRANT if isinstance(exc, NotAllowed) else ""
        yield unchecked(ID, f"{_WHAT}: {exc}", fix)
        return
    profiles = installation.settings.profiles.values()
    found = [*_unlimited(profiles, nodepools), *(f for p in profiles for f in _short(p, nodepools))]
    yield from found
    if not found:
        shown = _list(p.metadata.name for p in nodepools)
        yield ok(ID, f"NodePools: {shown}" if shown else "the cluster has no NodePools")


def follow(settings: Settings, stop: threading.Event) -> None:
    """Check until `stop`: log what is new, and record all findings for `status`. While the API server
    or the database does not answer, what was recorded stays."""
    clock, before = SystemClock(), set[str]()
    while not stop.is_set():
        try:
            found, pause_s = {f.evidence: f for f in _recorded(settings)}, EVERY_S
        except (PoolError, OSError) as exc:
            found, pause_s = {_OUTAGE: unchecked(ID, f"{_WHAT}: {exc}")}, AGAIN_S
        for finding in (f for key, f in found.items() if key not in before):
            log.warning("preflight_problem_found", **finding.as_log())
        before, due = set(found), clock.monotonic() + pause_s
        while clock.monotonic() < due and not clock.wait(stop, _TURN_S):
            pass


def _recorded(settings: Settings) -> list[Finding]:
    """Check, record and return what was found."""
    with closing(Installation(settings)) as installation:
        if settings.pool.driver == "kubernetes":
            installation.cluster.now_s()
            installation.cluster_answers = True
        found = [f for f in node_ceiling(installation) if f.level is not Level.OK]
        record(installation.store, found)
    return found


def record(store: Store, found: Sequence[Finding]) -> None:
    """Replace what was recorded about the ceiling by these findings."""
    shown = {f.id: "; ".join(filter(None, (f.evidence, f.fix))) for f in found[:_MOST_RECORDED]}
    with store.write() as tx:
        suspects.forget_others(tx, SuspectKind.NODE_CEILING, shown)
        for ident, sentence in sorted(shown.items()):
            suspects.see(tx, SuspectKind.NODE_CEILING, ident, sentence)


def _unlimited(profiles: Iterable[Profile], nodepools: Sequence[NodePool]) -> Iterator[Finding]:
    """Yield one finding for all NodePools of workers that have no limit."""
    open_ended = [p for p in nodepools if p.ceiling_s is None]
    hosted = [profile for profile in profiles if any(p.may_host(profile) for p in open_ended)]
    names = [p.metadata.name for p in open_ended if any(p.may_host(profile) for profile in hosted)]
    if not names:
        return
    which = f"NodePool {names[0]} has" if len(names) == 1 else f"NodePools {_list(names)} have"
    yield Finding(
        id=f"{ID}:unlimited",
        level=Level.WARN,
        evidence=f"{which} no terminationGracePeriod: a busy worker can block the removal of its node "
        "without limit",
        fix=f"set terminationGracePeriod above grace_s of the workers, {max(p.grace_s for p in hosted)} s",
    )


def _short(profile: Profile, nodepools: Sequence[NodePool]) -> Iterator[Finding]:
    """Yield the NodePools of a profile whose limit is not above the grace period of its workers."""
    for pool in (p for p in nodepools if p.may_host(profile)):
        if pool.ceiling_s is not None and pool.ceiling_s <= profile.grace_s:
            yield Finding(
                id=f"{ID}:{pool.metadata.name}:{profile.name}",
                level=Level.BAD,
                evidence=f"NodePool {pool.metadata.name} removes a node after {pool.ceiling_s:.0f} s "
                "(terminationGracePeriod), which is not above "
                f"grace_s of profile {profile.name}, {profile.grace_s} s: its workers are "
                "terminated at once, busy or not",
                fix="raise terminationGracePeriod, or lower grace_s of the profile",
            )


def _list(names: Iterable[str]) -> str:
    some = list(names)
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return ", ".join(some[:_SHOWN]) + more
