"""Every setting with its default, bounds and description. The unit is part of the name. Reads no
file: see `pool.config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any


def _opt(default: Any, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """Return a dataclass field with a description and bounds; each instance gets its own mapping."""
    metadata = {"doc": doc, "least": least, "most": most}
    if isinstance(default, dict | list | tuple) and not default:
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata) if default is not MISSING else field(metadata=metadata)


UNBOUNDED = "max_workers is 0: the pool is unbounded; the cluster's autoscaler is the limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Settings of the pool: `[pool]` in the file, `WARMPOOL_<NAME>` in the environment."""

    data_dir: str = _opt(
        ".warmpool", "Directory of the embedded Redis, the embedded Postgres and the local pods."
    )
    database_url: str = _opt(
        "",
        "Postgres URL: postgresql://USER:PASSWORD@HOST/NAME. Several hosts, HOST1:PORT,HOST2:PORT: the one"
        " that accepts writes is used. Empty: the embedded server.",
    )
    database_pooler: bool = _opt(
        default=False,
        doc="Whether database_url points to a pooler in transaction mode, such as PgBouncer.",
    )
    database_connections: int = _opt(
        5,
        "Maximum number of database connections that the threads of one Celery worker share. An acquire"
        " worker has at least one per thread, even if this is lower.",
        least=3,
        most=500,
    )
    broker_url: str = _opt(
        "",
        "Redis URL: redis://HOST:PORT/N, rediss:// for TLS, unix:///PATH, or "
        "sentinel://HOST:PORT,HOST:PORT/MASTER/N. Empty: the embedded server.",
    )
    driver: str = _opt("local", "Driver that creates pods: local or kubernetes.")
    master_key: str = _opt(
        "",
        "Secret for worker and org keys, at least 32 characters. Empty: generated once under data_dir.",
    )
    master_key_previous: str = _opt(
        "", "Previous master key, accepted until nothing created under it is left. Empty: none."
    )
    master_key_next: str = _opt(
        "", "Next master key, accepted before anything is created under it. Empty: none."
    )
    signed_requests: bool = _opt(
        default=False,
        doc="Whether requests must be signed with an org key. If false, any caller may act for any org.",
    )
    signature_limit_s: int = _opt(
        900, "Longest validity of a signature, in seconds; nonces are remembered as long.", least=300
    )
    queue_per_org: bool = _opt(
        default=False, doc="Whether each org has its own queue and reply keys; requires signed_requests."
    )

    follower_queues: tuple[str, ...] = _opt(
        ("celery",),
        "Queues to which callbacks, chains and chords of a caller's request may be sent; the first is for"
        " tasks that name none. Empty: none are sent. With signed_requests none are accepted.",
    )
    message_limit_bytes: int = _opt(
        1_000_000,
        "Largest message that a caller may send, in bytes. Larger ones are dropped.",
        least=10_000,
        most=100_000_000,
    )

    max_workers: int = _opt(0, "Maximum number of live workers, slots included; 0 means no cap.", least=0)
    hot_idle_ttl_s: int = _opt(
        60, "Default time that a released worker stays parked for its org, in seconds.", least=0
    )
    hot_idle_ttl_max_s: int = _opt(
        86_400,
        "Longest parking time, in seconds; a longer one of a call or an org is lowered to it.",
        least=0,
    )
    surplus_ttl_s: int = _opt(300, "Time to keep an idle worker above the warm target, in seconds.", least=0)
    miss_fresh_s: int = _opt(60, "Time for which a miss counts as demand, in seconds.", least=1)
    max_age_s: int = _opt(
        0, "Age at which an unclaimed worker is retired, in seconds; 0 means never.", least=0
    )
    rollout_step_percent: int = _opt(
        10,
        "Part of a profile's workers that is replaced at a time when the profile changes, in percent; at least one worker.",
        least=1,
        most=100,
    )
    rollout_ready_s: int = _opt(
        10, "Time that a new worker must have been ready before it replaces an old one, in seconds.", least=0
    )

    pod_ready_limit_s: int = _opt(60, "Longest time a pod may take to become ready, in seconds.", least=1)
    spawn_budget_s: int = _opt(
        90,
        "Longest time from slot to ready, queueing included, in seconds. Then the spawn is sent again.",
        least=1,
    )
    stuck_cutoff_s: int = _opt(
        120, "Age at which a slot is considered stuck and is freed, in seconds.", least=1
    )
    unschedulable_limit_s: int = _opt(
        300, "Time to keep a pod that cannot be scheduled, in seconds.", least=0
    )
    activation_budget_s: int = _opt(30, "Longest activation of one worker, in seconds.", least=1)
    activation_heartbeat_s: int = _opt(
        2, "Interval at which the pool records that an activation is still running, in seconds.", least=1
    )
    activation_stuck_s: int = _opt(
        15, "Time without a heartbeat after which an activation is considered dead, in seconds.", least=2
    )
    activation_tries: int = _opt(
        3, "Number of workers to try before an acquire is refused with activation_failed.", least=1, most=10
    )
    call_timeout_s: int = _opt(
        10, "Timeout of one call to the database, the cluster or a worker, in seconds.", least=1, most=120
    )
    visibility_timeout_s: int = _opt(
        180, "Time after which an unacknowledged task is delivered again, in seconds.", least=10
    )
    result_expires_s: int = _opt(
        4500, "Time to keep an answer, in seconds; must exceed the longest wait.", least=60
    )
    terminal_keep_s: int = _opt(
        86_400, "Time to keep ended workers, claims and requests, in seconds.", least=60
    )
    journal_keep_s: int = _opt(7 * 86_400, "Time to keep journal entries, in seconds.", least=60)

    acquire_threads: int = _opt(8, "Number of threads of an acquire worker.", least=1, most=256)
    fleet_threads: int = _opt(
        50, "Maximum number of concurrent spawns and retires in one fleet worker.", least=1, most=1000
    )
    bind_threads: int = _opt(
        20, "Maximum number of concurrent activations and stamps in one bind worker.", least=1, most=1000
    )
    passes_threads: int = _opt(
        8, "Number of threads of a pass worker; at least one per pass.", least=7, most=64
    )
    pass_limit: int = _opt(500, "Maximum number of rows that one run of a pass acts on.", least=1)
    pass_failures_limit: int = _opt(
        10,
        "Number of consecutive runs of a pass that raise, after which it is logged as failing. The "
        "process exits only if all of its passes raise.",
        least=1,
    )

    protect_before_grant: bool = _opt(
        default=False, doc="Whether a grant waits until the pod is stamped as busy."
    )
    metrics_port: int = _opt(
        0,
        "Port on which each process serves its metrics; 0 means none. `warmpool up` picks free ports instead.",
        least=0,
        most=65_535,
    )
    metrics_host: str = _opt("127.0.0.1", "Address on which metrics are served; 0.0.0.0 in a container.")
    events: bool = _opt(default=True, doc="Whether to send Celery task events, which Flower displays.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of worker. `[profiles.NAME]` in the file."""

    name: str = _opt("default", "Name of the profile: lower-case letters, digits and dashes.")
    image: str = _opt("warmpool/reference-worker", "Container image. The local driver only compares it.")
    command: tuple[str, ...] = _opt(
        (), "Command line. Empty: the image's own; with the local driver, the reference worker."
    )
    env: Mapping[str, str] = _opt({}, "Extra environment variables.")
    cpu_millicores: int = _opt(500, "CPU request and limit, in millicores.", least=1)
    memory_mib: int = _opt(512, "Memory request and limit, in MiB.", least=1)
    ephemeral_storage_mib: int = _opt(
        1024,
        "Disk request and limit for /tmp, other emptyDirs and logs, in MiB; Kubernetes only.",
        least=1,
    )
    port: int = _opt(
        8080, "Port on which the worker listens. The local driver picks a free one.", least=1, most=65_535
    )
    warm_target: int = _opt(3, "Number of idle workers to keep ready.", least=0)
    headroom: int = _opt(
        0, "Number of placeholder pods, which workers of any profile preempt; 0 means none.", least=0
    )
    headroom_cpu_millicores: int = _opt(
        0,
        "CPU of one placeholder, in millicores, for example all of a node; 0 means that of a worker.",
        least=0,
    )
    headroom_memory_mib: int = _opt(
        0, "Memory of one placeholder, in MiB, for example all of a node; 0 means that of a worker.", least=0
    )
    hot_idle_ttl_s: int | None = _opt(
        None, "Parking time for this profile, in seconds; overrides [pool].", least=0
    )
    activation_path: str = _opt(
        "", "Path to which a POST is sent to activate a worker for an org. Empty: workers need no activation."
    )
    activation_payload: Mapping[str, Any] = _opt(
        {},
        "JSON body of the activation. {org}, {claim_id} and {worker_id} are replaced by their values,"
        " {values.KEY} by the org's value for KEY.",
    )
    activation_budget_s: int | None = _opt(
        None, "Longest activation for this profile, in seconds; overrides [pool].", least=1
    )
    probe_path: str = _opt(
        "",
        "Path of a GET probe that must answer 2xx, also during a claim. Empty: only the driver reports health.",
    )
    grace_s: int = _opt(
        600,
        "Time that a worker may take to finish its sessions after SIGTERM, in seconds.",
        least=0,
    )

    # Used only by the Kubernetes driver.
    service_account: str = _opt("", "ServiceAccount of the pods. Empty: the namespace's default.")
    own_service_account: bool = _opt(
        default=False, doc="Whether each pod gets its own ServiceAccount instead."
    )
    run_as_user: int | None = _opt(
        None, "Numeric user id of the containers, for an image that does not set one.", least=1
    )
    node_selector: Mapping[str, str] = _opt({}, "Labels that a node must have.")
    tolerations: tuple[Mapping[str, Any], ...] = _opt(
        (), "Tolerations, in Kubernetes syntax; each must name its key."
    )
    affinity: Mapping[str, Any] = _opt({}, "Affinity, in Kubernetes syntax.")
    runtime_class: str = _opt("", "RuntimeClass of the pods. Empty: the cluster's default.")
    priority_class: str = _opt("", "PriorityClass of the pods. Empty: worker_priority_class of [kubernetes].")
    readiness_path: str = _opt(
        "/healthz", "Path of a GET probe that answers 2xx once the pod is ready. Empty: ready when running."
    )
    volumes: tuple[Mapping[str, Any], ...] = _opt((), "Extra volumes, in Kubernetes syntax.")
    mounts: tuple[Mapping[str, Any], ...] = _opt((), "Mounts of the extra volumes, in Kubernetes syntax.")
    pod_labels: Mapping[str, str] = _opt({}, "Extra labels of the pods.")
    pod_annotations: Mapping[str, str] = _opt({}, "Extra annotations of the pods.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """The cluster, for the driver `kubernetes`: `[kubernetes]` in the file,
    `WARMPOOL_KUBERNETES_<NAME>` in the environment.
    """

    namespace: str = _opt("", "Namespace of the workers. Empty: that of this pod, else that of the context.")
    kubeconfig: str = _opt(
        "", "Path of a kubeconfig. Empty: this pod's ServiceAccount, else the default path."
    )
    context: str = _opt("", "Context of the kubeconfig. Empty: its current context.")
    qps: int = _opt(
        50,
        "Maximum sustained rate of calls to the API server from one process, per second.",
        least=1,
        most=10_000,
    )
    burst: int = _opt(100, "Maximum number of API calls in a burst.", least=1, most=10_000)
    relist_s: int = _opt(300, "Interval at which the pod cache lists all pods again, in seconds.", least=10)
    anchor: str = _opt(
        "warmpool-anchor",
        "ConfigMap that owns all pods and identifies this pool. Deleting it deletes the pods.",
    )
    pull_secrets: tuple[str, ...] = _opt((), "Secrets used to pull images.")
    worker_priority_class: str = _opt(
        "", "Name of the workers' PriorityClass; its value must be 0 or more. Empty: the cluster's default."
    )
    placeholder_priority_class: str = _opt(
        "warmpool-placeholder", "PriorityClass of headroom placeholders, with the value -10; it must exist."
    )
    placeholder_image: str = _opt(
        "", "Image of placeholder pods, which does nothing. Empty: the profile's image, running sleep."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgDefaults:
    """Initial values of an org, `[orgs.NAME]` in the file. Later changes in the database take precedence."""

    cap: int = _opt(0, "Maximum number of live claims; 0 means no cap.", least=0)
    weight: float = _opt(
        1.0,
        "Share of the org when several orgs wait for workers: weight 2 gets twice as many as weight 1.",
        least=0.001,
        most=1_000_000,
    )
    hot_idle_floor: int = _opt(0, "Number of parked workers to keep past their TTL.", least=0)
    hot_idle_cap: int = _opt(
        0, "Maximum number of parked workers; 0 means no cap. Takes precedence over the floor.", least=0
    )
    hot_idle_ttl_s: int | None = _opt(
        None, "Parking time for this org, in seconds; overrides the profile and [pool].", least=0
    )
    values: Mapping[str, str] = _opt({}, "Values that activation payloads may refer to as {values.KEY}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole configuration of one deployment."""

    pool: PoolSettings = field(default_factory=PoolSettings)
    profiles: Mapping[str, Profile] = field(default_factory=lambda: {"default": Profile()})
    orgs: Mapping[str, OrgDefaults] = field(default_factory=dict)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    orgs_auto_create: bool = _opt(default=True, doc="Whether an unknown org is created by its first acquire.")

    def ttl_s(self, profile: Profile, *, call: int | None, org: int | None) -> int:
        """Return the parking time: of the call, else the org, else the profile, else the pool;
        clamped to the maximum.
        """
        chain = (call, org, profile.hot_idle_ttl_s, self.pool.hot_idle_ttl_s)
        chosen = next(v for v in chain if v is not None)
        return max(0, min(chosen, self.pool.hot_idle_ttl_max_s))

    def activation_budget_s(self, profile: Profile) -> int:
        """Return the longest time that an activation of this profile may take."""
        return profile.activation_budget_s or self.pool.activation_budget_s


def nesting_problems(p: PoolSettings) -> list[str]:
    """Return a sentence for each pair of time budgets that do not nest. Every process checks this
    at start-up.
    """
    longest_task_s = max(p.activation_budget_s, p.call_timeout_s) + p.call_timeout_s
    least_s = longest_task_s + 60
    rules = [
        (p.spawn_budget_s >= p.pod_ready_limit_s, "spawn_budget_s must be at least pod_ready_limit_s"),
        (p.stuck_cutoff_s > p.spawn_budget_s, "stuck_cutoff_s must be more than spawn_budget_s"),
        (
            p.activation_stuck_s > 2 * p.activation_heartbeat_s,
            "activation_stuck_s must be more than twice activation_heartbeat_s",
        ),
        (
            p.visibility_timeout_s >= least_s,
            f"visibility_timeout_s must be at least {least_s} (activation_budget_s + call_timeout_s + 60)",
        ),
        (p.result_expires_s > 3600, "result_expires_s must be more than the longest wait_s, 3600"),
        (p.signed_requests or not p.queue_per_org, "queue_per_org requires signed_requests"),
        (p.hot_idle_ttl_s <= p.hot_idle_ttl_max_s, "hot_idle_ttl_s must be at most hot_idle_ttl_max_s"),
    ]
    return [sentence for holds, sentence in rules if not holds]
