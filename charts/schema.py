"""Generate values.schema.json of the chart:

    python -m charts.schema > charts/warmpool/values.schema.json

The chart's own values are described here. The part that becomes warmpool.toml is derived from the
settings classes, so the chart knows every setting, and a typo in either is rejected by name.
"""

from __future__ import annotations

import json
import sys
import types
from dataclasses import Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from pool.core.names import DNS_LABEL
from pool.core.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile

Schema = dict[str, Any]

# Settings that the chart sets itself.
POOL_OF_THE_CHART = frozenset(
    {
        *("data_dir", "database_url", "broker_url", "driver", "metrics_host", "metrics_port"),
        *("master_key", "master_key_previous", "master_key_next"),
    }
)
KUBERNETES_OF_THE_CHART = frozenset(
    {"namespace", "kubeconfig", "context", "anchor", "worker_priority_class", "placeholder_priority_class"}
)
_PLAIN: dict[type, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}


def obj(description: str, **properties: Schema) -> Schema:
    """Return an object schema that allows only these keys."""
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": properties,
    }


def text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def number(description: str, least: int = 0, most: int | None = None) -> Schema:
    return {"type": "integer", "description": description, "minimum": least} | (
        {} if most is None else {"maximum": most}
    )


def texts(description: str) -> Schema:
    return {"type": "object", "description": description, "additionalProperties": {"type": "string"}}


def names(description: str) -> Schema:
    items = {"type": "string", "minLength": 1}
    return {"type": "array", "description": description, "items": items}


def of_kubernetes(description: str, kind: str = "array") -> Schema:
    """Return a schema for a value that Kubernetes documents and validates."""
    items = {"items": {"type": "object"}} if kind == "array" else {"additionalProperties": True}
    return {"type": kind, "description": f"{description}, in Kubernetes syntax", **items}


def existing(description: str, **keys: Schema) -> Schema:
    return obj(description, name=text("Name of the Secret. Empty: none"), **keys)


def resources(description: str = "Requests and limits") -> Schema:
    amounts = {
        "type": "object",
        "additionalProperties": {"type": ["string", "integer", "number"]},
    }
    return obj(
        description,
        requests={**amounts, "description": "Reserved resources"},
        limits={**amounts, "description": "Maximum resources"},
    )


def component_keys() -> dict[str, Schema]:
    """Return the keys of `defaults`, which each component may override."""
    return {
        "replicas": number("Number of replicas", 1),
        "resources": resources(),
        "terminationGracePeriodSeconds": number("Time to finish running tasks after SIGTERM, in seconds", 1),
        "topologySpreadKeys": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Node labels across whose values the pods are spread",
        },
        "nodeSelector": texts("Labels that a node must have"),
        "tolerations": of_kubernetes("Tolerations"),
        "affinity": of_kubernetes("Affinity", "object"),
        "priorityClassName": text("PriorityClass. Empty: that of priorityClasses.controlPlane"),
        "podLabels": texts("Extra labels of the pods"),
        "podAnnotations": texts("Extra annotations of the pods"),
        "serviceAccountAnnotations": texts("Annotations of the ServiceAccount, for cloud identities"),
        "extraEnv": of_kubernetes("Extra environment variables"),
        "extraVolumes": of_kubernetes("Extra volumes"),
        "extraVolumeMounts": of_kubernetes("Mounts of the extra volumes"),
        "extraContainers": of_kubernetes("Extra containers of the pod"),
    }


def component(description: str, **more: Schema) -> Schema:
    return obj(description, **more, **component_keys())


def bundled(what: str, **more: Schema) -> Schema:
    return obj(
        f"A {what} for trials: one replica, no backups",
        enabled=flag("Whether to install it"),
        image=text("Image"),
        digest=text(
            "sha256:… of the image; takes precedence over the tag", pattern="^(sha256:[0-9a-f]{64})?$"
        ),
        storage=text("Size of the volume"),
        storageClass=text("StorageClass of the volume. Empty: the cluster's default"),
        resources=resources(),
        **more,
    )


def settings_table(cls: type, description: str, without: frozenset[str]) -> Schema:
    """Return the schema of a table of warmpool.toml, derived from its settings class."""
    types_of = get_type_hints(cls)
    known = {f.name: setting(f, types_of[f.name]) for f in fields(cls) if f.name not in without}
    return obj(description, **known)


def setting(field: Field[Any], of: Any) -> Schema:
    found = kind(of) | {"description": field.metadata["doc"]}
    for word, bound in (("minimum", field.metadata["least"]), ("maximum", field.metadata["most"])):
        if bound is not None:
            found[word] = bound
    return found


def kind(of: Any) -> Schema:
    """Return the JSON type for the type of a setting."""
    if isinstance(of, types.UnionType):
        return kind(next(a for a in get_args(of) if a is not type(None)))
    if of in _PLAIN:
        return dict(_PLAIN[of])
    if get_origin(of) is tuple:
        item = get_args(of)[0]
        return {"type": "array", "items": _PLAIN.get(item, {"type": "object"})}
    of_values = get_args(of)[1]
    return {"type": "object", "additionalProperties": _PLAIN.get(of_values, True)}


def config() -> Schema:
    org = settings_table(
        OrgDefaults, "Initial values of one org; later changes by `warmpool org` take precedence", frozenset()
    )
    profile = settings_table(Profile, "One kind of worker", frozenset({"name"}))
    return obj(
        "warmpool.toml: settings that differ from the defaults",
        pool=settings_table(PoolSettings, "[pool]", POOL_OF_THE_CHART),
        kubernetes=settings_table(KubernetesSettings, "[kubernetes]", KUBERNETES_OF_THE_CHART),
        profiles={
            "type": "object",
            "description": "[profiles.NAME]; a profile without an image runs the reference worker",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{DNS_LABEL.pattern}$"},
            "additionalProperties": profile,
        },
        orgs={
            "type": "object",
            "description": "[orgs.NAME]; the migration creates each org once",
            "additionalProperties": org,
        },
        orgsAutoCreate=flag("Whether an unknown org is created by its first acquire"),
    )


def network() -> Schema:
    def server(what: str, **more: Schema) -> Schema:
        return obj(
            f"Address of {what}, if it is not bundled",
            port=number("Port", 1, 65_535),
            **more,
            to=of_kubernetes("NetworkPolicy peers (empty: any address)"),
        )

    peers = {
        "producers": "Services that may connect to the bundled Redis",
        "metrics": "Clients that may scrape metrics",
        "flower": "Clients that may connect to Flower",
        "board": "Clients that may connect to the board",
        "exporter": "Clients that may connect to the exporter, besides those in metrics",
    }
    return obj(
        "NetworkPolicies: deny everything, then allow what each component needs",
        enabled=flag("Whether to create NetworkPolicies"),
        dns=obj("DNS of the cluster", namespace=text("Namespace of the cluster's DNS")),
        redis=server("Redis", sentinelPort=number("Port of the sentinels. 0: none", 0, 65_535)),
        database=server("Postgres"),
        apiServer=obj(
            "API server of the cluster",
            ports={"type": "array", "items": {"type": "integer"}, "description": "Ports"},
            to=of_kubernetes("NetworkPolicy peers (empty: any address)"),
        ),
        **{
            "from": obj(
                "Clients that may connect",
                **{name: of_kubernetes(description, "array") for name, description in peers.items()},
            )
        },
    )


def monitoring() -> Schema:
    def one(what: str, **more: Schema) -> Schema:
        return obj(what, enabled=flag("Whether to create it"), labels=texts("Extra labels"), **more)

    return obj(
        "Objects for the Prometheus operator and Grafana's sidecar",
        serviceMonitor=one(
            "A ServiceMonitor for the exporter and a PodMonitor for the Celery workers and beat",
            interval=text("Scrape interval", pattern="^[0-9]+(ms|s|m)$"),
        ),
        prometheusRule=one("A PrometheusRule with the alerts of files/alerts.yaml"),
        dashboard=one("A ConfigMap with files/dashboard.json"),
    )


def priority_class(what: str, **more: Schema) -> Schema:
    return obj(
        f"The PriorityClass of {what}",
        create=flag("Whether the chart creates it"),
        name=text("Name. Empty: derived from the release"),
        **more,
    )


def values() -> Schema:
    """Return the schema of values.yaml."""
    switch = {"enabled": flag("Whether to install it")}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart warmpool",
        **obj(
            "All values",
            **{"global": {"type": "object", "description": "Values of a parent chart; not used"}},
            nameOverride=text("Replaces the chart's name in labels"),
            fullnameOverride=text("Replaces the release's and the chart's name in object names"),
            commonLabels=texts("Labels on every object"),
            image=obj(
                "The image of every component",
                repository=text("Repository", minLength=1),
                tag=text("Tag. Empty: the chart's appVersion"),
                digest=text("sha256:…; use it instead of a tag", pattern="^(sha256:[0-9a-f]{64})?$"),
                pullPolicy=text("Pull policy", enum=["Always", "IfNotPresent", "Never"]),
            ),
            imagePullSecrets=of_kubernetes("Secrets used to pull images"),
            redis=obj(
                "The broker: set one of url, existingSecret.name, bundled.enabled",
                url=text(
                    "redis://USER:PASSWORD@HOST:PORT/N, rediss:// for TLS with a verified certificate, or "
                    "sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER/N, sentinels:// for TLS"
                ),
                flowerUrl=text("URL for Flower's user. Empty: url"),
                producerUrl=text("URL for the services' user. Empty: url"),
                existingSecret=existing(
                    "A Secret with the URL",
                    key=text("Key of the URL in the Secret"),
                    flowerKey=text("Key of Flower's URL in the Secret. Empty: key"),
                    producerKey=text("Key of the services' URL in the Secret. Empty: key"),
                ),
                bundled=bundled(
                    "Redis",
                    aclLines={
                        "type": "array",
                        "items": {"type": "string", "pattern": "^user [^ ]+ (on|off) "},
                        "description": "Extra lines for its ACL file, as printed by `warmpool org acl`",
                    },
                ),
            ),
            database=obj(
                "Postgres: set one of url, existingSecret.name, bundled.enabled",
                url=text("postgresql://USER:PASSWORD@HOST:PORT/NAME?sslmode=verify-full&sslrootcert=FILE"),
                existingSecret=existing("A Secret with the URL", key=text("Key of the URL in the Secret")),
                bundled=bundled("Postgres"),
            ),
            tls=obj(
                "Certificates that the URLs refer to",
                existingSecret=text("Secret that is mounted at /etc/warmpool-tls. Empty: none"),
            ),
            masterKey=obj(
                "Secret from which worker keys, claim tokens and org keys are derived",
                value=text(
                    "At least 32 characters. Empty: generated at the first install and kept on upgrades"
                ),
                existingSecret=existing("A Secret with the master key", key=text("Key in the Secret")),
                previousSecret=existing(
                    "A Secret with the previous master key, accepted until nothing created under it is left",
                    key=text("Key in the Secret"),
                ),
                nextSecret=existing(
                    "A Secret with the next master key, accepted before anything is created under it",
                    key=text("Key in the Secret"),
                ),
            ),
            config=config(),
            workers=obj(
                "Where worker pods run, and rules for all of them",
                namespace=text("Namespace of the workers. Empty: <namespace>-<fullname>-workers"),
                createNamespace=flag(
                    "Whether the chart creates the namespace, with the restricted pod security standard"
                ),
                busyBudget=obj(
                    "PodDisruptionBudget that prevents the eviction of busy workers",
                    enabled=flag("Whether to create it"),
                ),
                nodeTerminationGracePeriodSeconds=number(
                    "terminationGracePeriod of the nodes, in seconds; 0: unknown"
                ),
                ingressFrom=of_kubernetes(
                    "Clients that may connect to workers, besides the control plane: NetworkPolicy peers"
                ),
                egress=of_kubernetes(
                    "Destinations that workers may connect to, besides DNS: NetworkPolicy rules"
                ),
            ),
            priorityClasses=obj(
                "PriorityClasses: which pods may preempt others",
                controlPlane=priority_class(
                    "the control plane and the bundled servers",
                    value=number("Priority; must be above that of workers", -9, 1_000_000_000),
                    preemptionPolicy=text(
                        "Whether these pods may preempt pods of lower priority on a full node",
                        enum=["Never", "PreemptLowerPriority"],
                    ),
                ),
                worker=priority_class(
                    "workers", value=number("Priority; above that of placeholders", -9, 1_000_000_000)
                ),
                placeholder=priority_class("headroom placeholders; its value is -10"),
            ),
            rbac=obj(
                "Permissions in the cluster",
                nodes=flag("Whether the pool may list and watch nodes, to notice nodes that are draining"),
                nodepools=flag(
                    "Whether pass workers may list Karpenter's NodePools, to report those without a "
                    "terminationGracePeriod or with one that is too short"
                ),
            ),
            defaults=component("Defaults for every component"),
            acquire=component("Serves the calls of services"),
            fleet=component("Creates and deletes pods, and watches the cluster"),
            bind=component("Activates workers and stamps pods"),
            passes=component("Runs the passes that beat schedules"),
            beat=component("Schedules the passes; two replicas are safe"),
            flower=component(
                "Flower",
                **switch,
                urlPrefix=text("URL path. Empty: the root"),
                auth=obj(
                    "Login of Flower",
                    user=text("User name"),
                    password=text("Password. Empty: generated at the first install and kept on upgrades"),
                    existingSecret=existing("A Secret with user:password", key=text("Key in the Secret")),
                ),
            ),
            board=component(
                "The board, a web page",
                **switch,
                trustedProxies=names(
                    "Addresses and networks of proxies whose X-Forwarded-For, -Proto and -Host are trusted"
                ),
                secureCookie=flag(
                    "Whether the cookie is always Secure, even without a trusted X-Forwarded-Proto"
                ),
                sso=obj(
                    "Single sign-on by the headers of a trusted proxy",
                    userHeader=text("Header with the user's name. Empty: off", pattern="^[A-Za-z0-9-]*$"),
                    groupsHeader=text(
                        "Name of the header with the user's groups, separated by commas",
                        pattern="^[A-Za-z0-9-]*$",
                    ),
                    operators=names("Users who may act; all others may only view"),
                    operatorGroups=names("Groups whose users may act"),
                ),
                auth=obj(
                    "Password of the board, without single sign-on",
                    password=text("Password. Empty: generated at the first install and kept on upgrades"),
                    existingSecret=existing("A Secret with the password", key=text("Key in the Secret")),
                ),
            ),
            exporter=component("Exports metrics from the database at each scrape", **switch),
            migrate=obj(
                "Job that migrates the database before an install or upgrade",
                waitSeconds=number("Time that components wait for the schema, in seconds", 1),
                tries=number("Number of retries", 0),
                resources=resources(),
                extraEnv=of_kubernetes("Extra environment variables"),
            ),
            probes=obj(
                "When a component is restarted",
                silenceSeconds=number(
                    "Longest time between two updates of the liveness file of a healthy process, in seconds",
                    10,
                ),
                periodSeconds=number("Time between two probes, in seconds", 1),
                timeoutSeconds=number("Timeout of a probe, in seconds", 1),
                failures=number("Number of consecutive failed probes that cause a restart", 1),
                startFailures=number("Maximum number of failed probes, 2 s apart, during start-up", 1),
                graceSeconds=number(
                    "Time from SIGTERM to SIGKILL after a failed liveness probe, in seconds", 1
                ),
            ),
            networkPolicy=network(),
            monitoring=monitoring(),
            keda=obj(
                "Scales acquire and bind workers by Prometheus queries, never down to zero",
                enabled=flag("Whether to create ScaledObjects"),
                prometheusAddress=text("URL of Prometheus"),
                minReplicas=number("Minimum number of replicas", 1),
                maxReplicas=number("Maximum number of replicas", 1),
                queries=obj(
                    "PromQL queries", acquire=text("For acquire workers"), bind=text("For bind workers")
                ),
                thresholds=obj(
                    "Query result that one replica can handle",
                    acquire=text("For acquire workers"),
                    bind=text("For bind workers"),
                ),
            ),
            test=obj(
                "The acquire that `helm test` makes",
                org=text("Org"),
                profile=text("Profile"),
                waitSeconds=number("Longest wait for a worker, in seconds", 0, 3600),
            ),
        ),
    }


def as_json() -> str:
    return json.dumps(values(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_json())
