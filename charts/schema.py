"""values.schema.json of the chart: `python -m charts.schema > charts/warmpool/values.schema.json`.

The chart's own values are described here, each with what it is for. What goes into warmpool.toml is read off the settings themselves, so a
setting that is new there is known to the chart, and a typo in either has a name.
"""

from __future__ import annotations

import json
import sys
import types
from dataclasses import Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from pool.config.rules import PROFILE_NAME
from pool.settings import KubernetesSettings, OrgDefaults, PoolSettings, Profile

Schema = dict[str, Any]

# What the chart says itself.
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
    """A table in which only these keys may stand."""
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
    """What Kubernetes itself explains and checks."""
    items = {"items": {"type": "object"}} if kind == "array" else {"additionalProperties": True}
    return {"type": kind, "description": f"{description}, as Kubernetes writes it", **items}


def existing(description: str, **keys: Schema) -> Schema:
    return obj(description, name=text("Its name; empty: there is none"), **keys)


def resources(description: str = "Requests and limits") -> Schema:
    amounts = {
        "type": "object",
        "additionalProperties": {"type": ["string", "integer", "number"]},
    }
    return obj(
        description,
        requests={**amounts, "description": "What is set aside for it"},
        limits={**amounts, "description": "What it may not exceed"},
    )


def component_keys() -> dict[str, Schema]:
    """What a component may say for itself, and `defaults` for all."""
    return {
        "replicas": number("How many of it", 1),
        "resources": resources(),
        "terminationGracePeriodSeconds": number("How long it may finish what it holds when told to end", 1),
        "topologySpreadKeys": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Labels of nodes over whose values its pods are spread",
        },
        "nodeSelector": texts("Labels that its nodes must have"),
        "tolerations": of_kubernetes("Taints that it may stand beside"),
        "affinity": of_kubernetes("Affinity", "object"),
        "priorityClassName": text("Its PriorityClass; empty: the one of priorityClasses.controlPlane"),
        "podLabels": texts("Extra labels of its pods"),
        "podAnnotations": texts("Extra annotations of its pods"),
        "serviceAccountAnnotations": texts("Annotations of its ServiceAccount, for cloud identities"),
        "extraEnv": of_kubernetes("Extra environment variables"),
        "extraVolumes": of_kubernetes("Extra volumes"),
        "extraVolumeMounts": of_kubernetes("Where they are mounted"),
        "extraContainers": of_kubernetes("Containers beside its own"),
    }


def component(description: str, **more: Schema) -> Schema:
    return obj(description, **more, **component_keys())


def bundled(what: str, **more: Schema) -> Schema:
    return obj(
        f"A {what} of our own: one replica without backups, for trials",
        enabled=flag("Whether there is one"),
        image=text("Its image"),
        digest=text("sha256:… of its image; then the tag is only a note", pattern="^(sha256:[0-9a-f]{64})?$"),
        storage=text("Size of its volume"),
        storageClass=text("StorageClass of its volume; empty: the cluster's default"),
        resources=resources(),
        **more,
    )


def settings_table(cls: type, description: str, without: frozenset[str]) -> Schema:
    """A table of warmpool.toml, read off its settings."""
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
    """The JSON type of a setting's type."""
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
    org = settings_table(OrgDefaults, "One org; the table rules once it is there", frozenset())
    profile = settings_table(Profile, "One kind of worker", frozenset({"name"}))
    return obj(
        "warmpool.toml: what differs from the defaults",
        pool=settings_table(PoolSettings, "[pool]", POOL_OF_THE_CHART),
        kubernetes=settings_table(KubernetesSettings, "[kubernetes]", KUBERNETES_OF_THE_CHART),
        profiles={
            "type": "object",
            "description": "[profiles.NAME]; one without an image runs the reference worker",
            "minProperties": 1,
            "propertyNames": {"pattern": f"^{PROFILE_NAME.pattern}$"},
            "additionalProperties": profile,
        },
        orgs={
            "type": "object",
            "description": "[orgs.NAME]; they are made once, by the migration",
            "additionalProperties": org,
        },
        orgsAutoCreate=flag("Whether an org that nobody has named is made when it first asks"),
    )


def network() -> Schema:
    def server(what: str) -> Schema:
        return obj(
            f"Where {what} is, if it is not bundled",
            port=number("Its port", 1, 65_535),
            to=of_kubernetes("Peers of a NetworkPolicy; empty: any address"),
        )

    peers = {
        "producers": "Services that may reach the bundled Redis",
        "metrics": "Who may scrape metrics",
        "flower": "Who may reach Flower",
        "board": "Who may reach the board",
        "exporter": "Who may reach the exporter, beside those that scrape metrics",
    }
    return obj(
        "NetworkPolicies: first nothing is allowed, then what each component needs",
        enabled=flag("Whether there are any"),
        dns=obj("Where names are resolved", namespace=text("The namespace of the cluster's DNS")),
        redis=server("Redis"),
        database=server("Postgres"),
        apiServer=obj(
            "The cluster's API server",
            ports={"type": "array", "items": {"type": "integer"}, "description": "Its ports"},
            to=of_kubernetes("Peers of a NetworkPolicy; empty: any address"),
        ),
        **{
            "from": obj(
                "Who may come in", **{name: of_kubernetes(told, "array") for name, told in peers.items()}
            )
        },
    )


def monitoring() -> Schema:
    def one(what: str, **more: Schema) -> Schema:
        return obj(what, enabled=flag("Whether there is one"), labels=texts("Extra labels of it"), **more)

    return obj(
        "Objects for a Prometheus operator and Grafana's sidecar",
        serviceMonitor=one(
            "A ServiceMonitor of the exporter and a PodMonitor of the workers and beat",
            interval=text("How often it scrapes", pattern="^[0-9]+(ms|s|m)$"),
        ),
        prometheusRule=one("A PrometheusRule with the alerts of files/alerts.yaml"),
        dashboard=one("A ConfigMap with files/dashboard.json"),
    )


def priority_class(what: str, **more: Schema) -> Schema:
    return obj(
        f"The PriorityClass of {what}",
        create=flag("Whether the chart makes it"),
        name=text("Its name; empty: one of the release's own"),
        **more,
    )


def values() -> Schema:
    """The whole of values.yaml."""
    switch = {"enabled": flag("Whether it runs")}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart warmpool",
        **obj(
            "All values",
            **{"global": {"type": "object", "description": "What a parent chart gives; not used here"}},
            nameOverride=text("Instead of the chart's name in labels"),
            fullnameOverride=text("Instead of the release's and the chart's name in names"),
            commonLabels=texts("Labels on every object"),
            image=obj(
                "The image of every component",
                repository=text("Where it is", minLength=1),
                tag=text("Which one; empty: the chart's appVersion"),
                digest=text("sha256:…, instead of a tag", pattern="^(sha256:[0-9a-f]{64})?$"),
                pullPolicy=text("When it is pulled", enum=["Always", "IfNotPresent", "Never"]),
            ),
            imagePullSecrets=of_kubernetes("Secrets with which images are pulled"),
            redis=obj(
                "The broker: give one of url, existingSecret.name, bundled.enabled",
                url=text("redis://USER:PASSWORD@HOST:PORT/N, rediss:// for TLS with a checked certificate"),
                flowerUrl=text("The same for Flower's own user; empty: url"),
                producerUrl=text("The same for the user of services; empty: url"),
                existingSecret=existing(
                    "A Secret with the URL",
                    key=text("Its key with the URL"),
                    flowerKey=text("Its key with Flower's URL; empty: key"),
                    producerKey=text("Its key with the services' URL; empty: key"),
                ),
                bundled=bundled(
                    "Redis",
                    aclLines={
                        "type": "array",
                        "items": {"type": "string", "pattern": "^user [^ ]+ (on|off) "},
                        "description": "More lines of its ACL file, as `warmpool org acl` prints them",
                    },
                ),
            ),
            database=obj(
                "Postgres: give one of url, existingSecret.name, bundled.enabled",
                url=text("postgresql://USER:PASSWORD@HOST:PORT/NAME?sslmode=verify-full&sslrootcert=FILE"),
                existingSecret=existing("A Secret with the URL", key=text("Its key with the URL")),
                bundled=bundled("Postgres"),
            ),
            tls=obj(
                "Certificates that URLs name",
                existingSecret=text("A Secret that is mounted at /etc/warmpool-tls; empty: none"),
            ),
            masterKey=obj(
                "What worker keys, claim tokens and orgs' keys derive from",
                value=text("32 characters or more; empty: made once, kept over upgrades"),
                existingSecret=existing("A Secret with it", key=text("Its key")),
                previousSecret=existing(
                    "A Secret with the one before it, honoured until nothing made under it is left",
                    key=text("Its key"),
                ),
                nextSecret=existing(
                    "A Secret with the one after it, honoured before anything is made under it",
                    key=text("Its key"),
                ),
            ),
            config=config(),
            workers=obj(
                "Where worker pods are made, and what holds for all of them",
                namespace=text("Their namespace; empty: <namespace>-<fullname>-workers"),
                createNamespace=flag("Whether the chart makes it, under the restricted standard"),
                busyBudget=obj("Refuses the eviction of busy workers", enabled=flag("Whether there is one")),
                nodeTerminationGracePeriodSeconds=number(
                    "terminationGracePeriod of their nodes; 0: not known"
                ),
                ingressFrom=of_kubernetes(
                    "Who may reach them beside the control plane: peers of a NetworkPolicy"
                ),
                egress=of_kubernetes("Where they may go beside DNS: rules of a NetworkPolicy"),
            ),
            priorityClasses=obj(
                "Who gives way to whom",
                controlPlane=priority_class(
                    "the control plane and the bundled servers",
                    value=number("Its value, above the workers'", -9, 1_000_000_000),
                    preemptionPolicy=text(
                        "Whether it takes the place of pods below its value where a node is full",
                        enum=["Never", "PreemptLowerPriority"],
                    ),
                ),
                worker=priority_class(
                    "workers", value=number("Its value, above the placeholders'", -9, 1_000_000_000)
                ),
                placeholder=priority_class("headroom's placeholders; its value is -10"),
            ),
            rbac=obj(
                "Rights in the cluster",
                nodes=flag("Whether nodes may be listed and watched, to see which are being taken away"),
            ),
            defaults=component("For every component that says nothing else"),
            acquire=component("What services call"),
            fleet=component("Makes and deletes pods, and follows the cluster"),
            bind=component("Activates and stamps"),
            passes=component("The singletons that beat schedules"),
            beat=component("Sends the passes their ticks; two are high availability"),
            flower=component(
                "Flower",
                **switch,
                urlPrefix=text("Path under which it is served; empty: the root"),
                auth=obj(
                    "Its login",
                    user=text("Who"),
                    password=text("Empty: made once, kept over upgrades"),
                    existingSecret=existing("A Secret with user:password", key=text("Its key")),
                ),
            ),
            board=component(
                "The web page",
                **switch,
                trustedProxies=names(
                    "Addresses and networks of proxies whose X-Forwarded-For, -Proto and -Host are believed"
                ),
                secureCookie=flag(
                    "Whether its cookie is for TLS only, also without a trusted X-Forwarded-Proto"
                ),
                sso=obj(
                    "Single sign-on by headers of a trusted proxy",
                    userHeader=text("Header with the user's name; empty: off", pattern="^[A-Za-z0-9-]*$"),
                    groupsHeader=text(
                        "Header with the user's groups, separated by commas", pattern="^[A-Za-z0-9-]*$"
                    ),
                    operators=names("Users who may act; the others only look"),
                    operatorGroups=names("Groups whose users may act"),
                ),
                auth=obj(
                    "What it takes to look and to act",
                    password=text("Empty: made once, kept over upgrades"),
                    existingSecret=existing("A Secret with the password", key=text("Its key")),
                ),
            ),
            exporter=component("Metrics of the table, counted when they are scraped", **switch),
            migrate=obj(
                "Brings the database to the newest schema, before anything is installed or upgraded",
                waitSeconds=number("How long the others wait for it", 1),
                tries=number("How often it is tried again", 0),
                resources=resources(),
                extraEnv=of_kubernetes("Extra environment variables"),
            ),
            probes=obj(
                "When a component is restarted",
                silenceSeconds=number("A process that has touched its file within so long is well", 10),
                periodSeconds=number("How often it is looked at", 1),
                timeoutSeconds=number("How long a look may take", 1),
                failures=number("So many looks in a row restart it", 1),
                startFailures=number("So many looks, 2 s apart, while it starts", 1),
            ),
            networkPolicy=network(),
            monitoring=monitoring(),
            keda=obj(
                "Scales acquire and bind workers by Prometheus queries, never to zero",
                enabled=flag("Whether there are ScaledObjects"),
                prometheusAddress=text("URL of Prometheus"),
                minReplicas=number("Least replicas", 1),
                maxReplicas=number("Most replicas", 1),
                queries=obj("PromQL", acquire=text("For acquire workers"), bind=text("For bind workers")),
                thresholds=obj(
                    "What one replica takes", acquire=text("Of the first"), bind=text("Of the second")
                ),
            ),
            test=obj(
                "`helm test`",
                org=text("For whom it acquires"),
                profile=text("What it acquires"),
                waitSeconds=number("How long it waits for a worker", 0, 3600),
            ),
        ),
    }


def as_json() -> str:
    return json.dumps(values(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(as_json())
