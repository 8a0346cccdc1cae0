"""`up` on a cluster: which one is meant, whether it lets us in, and what is said of its pods when we stop.

The control plane runs here and its pods there. They belong to the table under the data directory, not to this machine: stopping leaves
them, and the next `up` on the same directory takes them over.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pool.config.environment import variable
from pool.drivers.port import LABEL_BUSY
from pool.errors import PoolError, Refused
from pool.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a command line says of where pods are made; the rest is the configuration's."""

    driver: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def environment(self) -> dict[str, str]:
        """The same as variables, which every component reads."""
        told = {
            variable("driver"): self.driver,
            variable("kubeconfig", "kubernetes"): self.kubeconfig and self.kubeconfig.expanduser().absolute(),
            variable("context", "kubernetes"): self.context,
            variable("namespace", "kubernetes"): self.namespace,
        }
        return {name: str(value) for name, value in told.items() if value is not None}

    def check(self, settings: Settings) -> None:
        """Words that would have no effect are told."""
        given = [n for n in ("kubeconfig", "context", "namespace") if getattr(self, n) is not None]
        if given and settings.pool.driver != "kubernetes":
            raise PoolError(f"--{given[0]} is for pods in a cluster: add --driver kubernetes")


def enter(settings: Settings) -> str:
    """Which cluster it is. Raises in one sentence if it can not be reached or does not let us look at our pods."""
    from pool import wiring
    from pool.drivers.kubernetes import access

    try:
        place = access.load(settings.kubernetes, connections=1)
        with closing(wiring.build_driver(settings)) as driver:
            driver.list()
    except Refused as exc:
        raise PoolError(exc.detail) from exc
    return f"{place.server}, namespace {place.namespace}"


def left_behind(settings: Settings) -> str:
    """What stays there, and how to be rid of it."""
    from pool import wiring

    anchor = settings.kubernetes.anchor
    try:
        with closing(wiring.build_driver(settings)) as driver:
            pods = driver.list().pods
    except PoolError as exc:
        return f"{'pods':<9}stay in the cluster, which does not answer ({exc})"
    if not pods:
        return ""
    busy = sum(pod.labels.get(LABEL_BUSY) == "true" for pod in pods)
    return (
        f"{'pods':<9}{len(pods)} stay in the cluster, {busy} of them busy; the next `warmpool up` here takes them over\n"
        f"{'':<9}to delete them as well, stop with --remove-pods, or delete the ConfigMap {anchor} in their namespace"
    )
