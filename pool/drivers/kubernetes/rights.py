"""Every right that the driver uses. A call names one of these, so the code can not need what is not here; `rbac.yaml` grants exactly these."""

from __future__ import annotations

from enum import Enum


class Right(Enum):
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
    def verb(self) -> str:
        return self.value[0]

    @property
    def resource(self) -> str:
        return self.value[1]

    @property
    def method(self) -> str:
        """The HTTP method that this right allows."""
        return _METHODS[self.verb]

    @property
    def of_the_cluster(self) -> bool:
        """Whether it is outside of any namespace."""
        return self.resource == "nodes"


_METHODS = {
    "create": "POST",
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "patch": "PATCH",
    "delete": "DELETE",
}
