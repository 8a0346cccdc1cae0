"""Checks of the cluster: reachable, and the permissions are granted. Without a cluster, the checks that did
not run are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pool.core.errors import PoolError, Refused
from pool.ops.doctor.finding import Finding, Installation, Level, ok, unchecked

if TYPE_CHECKING:
    from pool.drivers.kubernetes.inspecting import Inspector, MissingRight

_LEFT = "permissions, PriorityClasses, PodDisruptionBudgets, NodePools and the clock of the API server"
_ROLE = "the chart's roles grant it; the full list is in pool/drivers/kubernetes/rbac.yaml"


def reachable(installation: Installation) -> Iterator[Finding]:
    """Check that the API server answers. Without it the checks below do not run."""
    if installation.settings.pool.driver != "kubernetes":
        yield unchecked(
            "cluster", f"the driver is {installation.settings.pool.driver}, so these were skipped: {_LEFT}"
        )
        return
    try:
        installation.cluster.now_s()
    except PoolError as exc:
        kubectl = "check that `kubectl get pods` works here; check kubeconfig and context in [kubernetes]"
        yield Finding(id="cluster_reachable", level=Level.BAD, evidence=_detail(exc), fix=kubectl)
        yield unchecked("cluster", f"the API server does not answer, so these were skipped: {_LEFT}")
        return
    installation.cluster_answers = True
    yield ok("cluster_reachable", f"the API server answers, namespace {installation.cluster.namespace}")


def rights(installation: Installation) -> Iterator[Finding]:
    """Check every permission that the driver uses, with the API server's own access review."""
    if not installation.cluster_answers:
        return
    found = missing(installation.cluster, installation.cluster.missing_rights())
    yield from found or [ok("rights", "all permissions that the driver uses are granted")]


def missing(cluster: Inspector, missing_rights: Sequence[MissingRight]) -> list[Finding]:
    """Return one finding for each resource with missing permissions."""
    resources = dict.fromkeys(lack.right.resource for lack in missing_rights)
    return [
        _missing(cluster, [lack for lack in missing_rights if lack.right.resource == r]) for r in resources
    ]


def _missing(cluster: Inspector, lacks: Sequence[MissingRight]) -> Finding:
    first, verbs = lacks[0], ", ".join(lack.right.verb for lack in lacks)
    resource, vital = first.right.resource, any(lack.vital for lack in lacks)
    where = "in the cluster" if first.right.of_the_cluster else f"in namespace {cluster.namespace}"
    why = next((f" ({lack.said})" for lack in lacks if lack.said), "")
    place = "" if first.right.of_the_cluster else f" -n {cluster.namespace}"
    without = "" if vital else ": workers on nodes that are being removed are detected late"
    return Finding(
        id=f"rights:{resource}",
        level=Level.BAD if vital else Level.WARN,
        evidence=f"no permission to {verbs} {resource} {where}{why}{without}",
        fix=f"grant it ({_ROLE}); to verify: kubectl auth can-i {first.right.verb} {resource}{place}",
    )


def _detail(exc: PoolError) -> str:
    return exc.detail if isinstance(exc, Refused) else str(exc)
