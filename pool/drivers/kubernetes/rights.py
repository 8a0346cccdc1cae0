"""Every right that the driver uses. A call names one of these, so the code can not need what is not here; `rbac.yaml` grants exactly these. What a
check-up looks at beside them is a list of its own: it is left out where it is not allowed, and no role grants it."""

from __future__ import annotations

from enum import Enum, StrEnum

from pool.core.errors import PoolError


class NotAllowed(PoolError):
    """What a check-up may not look at. Nothing is wrong with that."""


class Need(StrEnum):
    """What it means to lack a right."""

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
        """The API group and its version; empty for the core's."""
        return str(self.value[2]) if len(self.value) > 2 else ""

    @property
    def of_the_cluster(self) -> bool:
        """Whether it is outside of any namespace."""
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

    # Only for the anchor; without `create` somebody else has to make it.
    GET_CONFIGMAPS = ("get", "configmaps")
    CREATE_CONFIGMAPS = ("create", "configmaps")

    # Only for profiles with a ServiceAccount for each pod.
    CREATE_SERVICEACCOUNTS = ("create", "serviceaccounts")
    LIST_SERVICEACCOUNTS = ("list", "serviceaccounts")
    PATCH_SERVICEACCOUNTS = ("patch", "serviceaccounts")
    DELETE_SERVICEACCOUNTS = ("delete", "serviceaccounts")

    # Only where nodes may be read; without it the rest works.
    LIST_NODES = ("list", "nodes")
    WATCH_NODES = ("watch", "nodes")

    @property
    def need(self) -> Need:
        """For what it is needed."""
        if self is Right.CREATE_CONFIGMAPS:
            return Need.ANCHOR
        return {"serviceaccounts": Need.ACCOUNTS, "nodes": Need.NODES}.get(self.resource, Need.MUST)


class Look(_Verb):
    """What only a check-up asks. Everybody who is known to the API server may ask what he may do; the rest is looked at where that is allowed."""

    REVIEW_OUR_ACCESS = ("create", "selfsubjectaccessreviews", "authorization.k8s.io/v1")
    LIST_PRIORITYCLASSES = ("list", "priorityclasses", "scheduling.k8s.io/v1")
    LIST_BUDGETS = ("list", "poddisruptionbudgets", "policy/v1")
    LIST_NODEPOOLS = ("list", "nodepools", "karpenter.sh/v1")


Asked = Right | Look

_OF_THE_CLUSTER = frozenset({"nodes", "selfsubjectaccessreviews", "priorityclasses", "nodepools"})
_METHODS = {
    "create": "POST",
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "patch": "PATCH",
    "delete": "DELETE",
}
