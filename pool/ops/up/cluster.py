"""`up` with the kubernetes driver: which cluster is used, whether we have access, and what happens
to its pods at the end.

The control plane runs here and the pods run in the cluster. The pods belong to the database in the
data directory, so stopping leaves them, and the next `up` with the same directory takes them over.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pool.config.environment import variable
from pool.core.errors import PoolError, Refused
from pool.core.settings import Settings
from pool.drivers.port import LABEL_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The command-line options about the cluster; they override the configuration."""

    driver: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None

    def environment(self) -> dict[str, str]:
        """Return the options as environment variables, which every component reads."""
        values = {
            variable("driver"): self.driver,
            variable("kubeconfig", "kubernetes"): self.kubeconfig and self.kubeconfig.expanduser().absolute(),
            variable("context", "kubernetes"): self.context,
            variable("namespace", "kubernetes"): self.namespace,
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def check(self, settings: Settings) -> None:
        """Raise `PoolError` for options that would have no effect."""
        given = [n for n in ("kubeconfig", "context", "namespace") if getattr(self, n) is not None]
        if given and settings.pool.driver != "kubernetes":
            raise PoolError(
                f"--{given[0]} needs --driver kubernetes, and the driver is {settings.pool.driver}: "
                "add --driver kubernetes, or remove the option"
            )


def enter(settings: Settings) -> str:
    """Return the address and namespace of the cluster. Raises `PoolError` if we cannot reach it or list its
    pods."""
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
    """Return a text about the pods that stay in the cluster, and how to delete them."""
    from pool import wiring

    anchor = settings.kubernetes.anchor
    try:
        with closing(wiring.build_driver(settings)) as driver:
            pods = driver.list().pods
    except PoolError as exc:
        return f"{'pods':<9}remain in the cluster, which does not answer ({exc})"
    if not pods:
        return ""
    busy = sum(pod.labels.get(LABEL_BUSY) == "true" for pod in pods)
    return (
        f"{'pods':<9}{len(pods)} remain in the cluster, {busy} of them busy; "
        "the next `warmpool up` with this data directory takes them over\n"
        f"{'':<9}to delete them, run `warmpool up --remove-pods` and stop it, "
        f"or delete the ConfigMap {anchor} in their namespace"
    )
