"""The cluster: there, and letting us do what we need to. Where there is none, or it can not be reached, what was not looked at is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pool.doctor.finding import Finding, Level, Patient, ok, unchecked
from pool.errors import PoolError, Refused

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector, Lack

_LEFT = "rights, priorities, the budget for busy workers, the ceiling of nodes and the API server's clock"
_ROLE = "pool/drivers/kubernetes/rbac.yaml has all of them, the chart's roles grant them"


def reachable(patient: Patient) -> Iterator[Finding]:
    """Whether there is a cluster to be looked at. The checks below say nothing without one."""
    if patient.settings.pool.driver != "kubernetes":
        yield unchecked(
            "cluster", f"the driver is {patient.settings.pool.driver}, so nobody looked at {_LEFT}"
        )
        return
    try:
        patient.cluster.now_s()
    except PoolError as exc:
        kubectl = "see that `kubectl get pods` works here, and [kubernetes] kubeconfig and context"
        yield Finding(id="cluster_reachable", level=Level.BAD, evidence=_detail(exc), fix=kubectl)
        yield unchecked("cluster", f"without it nobody looked at {_LEFT}")
        return
    patient.cluster_answers = True
    yield ok("cluster_reachable", f"it answers, namespace {patient.cluster.namespace}")


def rights(patient: Patient) -> Iterator[Finding]:
    """Every right that the driver uses, asked of the API server itself."""
    if not patient.cluster_answers:
        return
    found = missing(patient.cluster, patient.cluster.lacking())
    yield from found or [ok("rights", "every verb that is used is granted")]


def missing(cluster: Inspector, lacking: Sequence[Lack]) -> list[Finding]:
    """What is to be said of missing rights: one finding a resource."""
    resources = dict.fromkeys(lack.right.resource for lack in lacking)
    return [_missing(cluster, [lack for lack in lacking if lack.right.resource == r]) for r in resources]


def _missing(cluster: Inspector, lacks: Sequence[Lack]) -> Finding:
    first, verbs = lacks[0], ", ".join(lack.right.verb for lack in lacks)
    resource, vital = first.right.resource, any(lack.vital for lack in lacks)
    where = "in the cluster" if first.right.of_the_cluster else f"in namespace {cluster.namespace}"
    why = next((f" ({lack.said})" for lack in lacks if lack.said), "")
    place = "" if first.right.of_the_cluster else f" -n {cluster.namespace}"
    without = "" if vital else ": workers on nodes that are being taken away are noticed late"
    return Finding(
        id=f"rights:{resource}",
        level=Level.BAD if vital else Level.WARN,
        evidence=f"may not {verbs} {resource} {where}{why}{without}",
        fix=f"grant it ({_ROLE}), and see with: kubectl auth can-i {first.right.verb} {resource}{place}",
    )


def _detail(exc: PoolError) -> str:
    return exc.detail if isinstance(exc, Refused) else str(exc)
