"""Every right that the driver uses. Each call names one of them, and `rbac.yaml` grants exactly these.

The rights of `warmpool doctor` are a separate list. `rbac.yaml` does not grant them; a check without
its right is skipped.
"""

from __future__ import annotations

from enum import Enum, StrEnum

from pool.core.errors import PoolError


class NotAllowed(PoolError):
    """A check of `warmpool doctor` lacks its right. This is not an error."""


class Need(StrEnum):
    """What a right is needed for."""

    MUST = "must"
    ANCHOR = "anchor"
    ACCOUNTS = "accounts"
    NODES = "nodes"


class _Verb(Enum):
    """A verb on a resource."""

    @property
    def verb(self) -> str:
        return str(self.value[0])

    @property
    def resource(self) -> str:
        return str(self.value[1])

    @property
    def method(self) -> str:
        """The HTTP method that this right allows."""
        return _METHODS[self.verb]

    @property
    def group(self) -> str:
        """The API group and its version; empty for the core group."""
        return str(self.value[2]) if len(self.value) > 2 else ""

    @property
    def of_the_cluster(self) -> bool:
        """Whether the resource is cluster-scoped."""
        return self.resource in _OF_THE_CLUSTER


class Right(_Verb):
    """A verb on a resource of the core API."""

    CREATE_PODS = ("create", "pods")
    GET_PODS = ("get", "pods")
    LIST_PODS = ("list", "pods")
    WATCH_PODS = ("watch", "pods")
    PATCH_PODS = ("patch", "pods")
    DELETE_PODS = ("delete", "pods")

    CREATE_SECRETS = ("create", "secrets")
    GET_SECRETS = ("get", "secrets")
    LIST_SECRETS = ("list", "secrets")
    WATCH_SECRETS = ("watch", "secrets")
    PATCH_SECRETS = ("patch", "secrets")
    DELETE_SECRETS = ("delete", "secrets")

    # Only for the anchor. Without `create`, the anchor must be created by other means.
    GET_CONFIGMAPS = ("get", "configmaps")
    CREATE_CONFIGMAPS = ("create", "configmaps")

    # Only for profiles with own_service_account.
    CREATE_SERVICEACCOUNTS = ("create", "serviceaccounts")
    LIST_SERVICEACCOUNTS = ("list", "serviceaccounts")
    PATCH_SERVICEACCOUNTS = ("patch", "serviceaccounts")
    DELETE_SERVICEACCOUNTS = ("delete", "serviceaccounts")

    # Optional: the rest works without it.
    LIST_NODES = ("list", "nodes")
    WATCH_NODES = ("watch", "nodes")

    @property
    def need(self) -> Need:
        """What the right is needed for."""
        if self is Right.CREATE_CONFIGMAPS:
            return Need.ANCHOR
        return {"serviceaccounts": Need.ACCOUNTS, "nodes": Need.NODES}.get(self.resource, Need.MUST)


class DoctorRight(_Verb):
    """A right that only `warmpool doctor` uses. Every user may review its own access; the others
    are optional.
    """

    REVIEW_OUR_ACCESS = ("create", "selfsubjectaccessreviews", "authorization.k8s.io/v1")
    LIST_PRIORITYCLASSES = ("list", "priorityclasses", "scheduling.k8s.io/v1")
    LIST_BUDGETS = ("list", "poddisruptionbudgets", "policy/v1")
    LIST_NODEPOOLS = ("list", "nodepools", "karpenter.sh/v1")
    # Discovery, which every account may use: whether the cluster has Karpenter.
    DISCOVER_KARPENTER = ("get", "", "karpenter.sh/v1")


AnyRight = Right | DoctorRight

_OF_THE_CLUSTER = frozenset({"nodes", "selfsubjectaccessreviews", "priorityclasses", "nodepools", ""})
_METHODS = {
    "create": "POST",
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "patch": "PATCH",
    "delete": "DELETE",
}
