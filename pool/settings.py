"""Every setting, frozen, with its unit in its name, its bounds and what it is for beside it. Reads no file: see `pool.config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any


def _opt(default: Any, doc: str, *, least: float | None = None, most: float | None = None) -> Any:
    """A setting with its meaning and bounds; mappings get a fresh default each."""
    metadata = {"doc": doc, "least": least, "most": most}
    if isinstance(default, dict | list | tuple) and not default:
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata) if default is not MISSING else field(metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """The pool as a whole. `[pool]` in the file, `WARMPOOL_<NAME>` in the environment."""

    data_dir: str = _opt(".warmpool", "where the embedded Redis, SQLite and local pods live")
    database_url: str = _opt("", "postgresql://… or sqlite:///…; empty: SQLite under data_dir")
    broker_url: str = _opt("", "redis://…; empty: the embedded server's")
    driver: str = _opt("local", "what makes pods: local or kubernetes")
    master_key: str = _opt(
        "",
        "secret that worker keys and org keys derive from, 32 characters or more; empty: made once under data_dir",
    )
    master_key_previous: str = _opt(
        "", "the one before it, honoured until nothing made under it is left; empty: none"
    )
    master_key_next: str = _opt(
        "", "the one after it, honoured before anything is made under it; empty: none"
    )
    signed_requests: bool = _opt(
        default=False, doc="requests must be signed with an org's key; off: `org` is what the caller says"
    )
    signature_limit_s: int = _opt(
        900, "a signature that is valid for longer is refused; nonces are remembered as long", least=300
    )
    queue_per_org: bool = _opt(
        default=False, doc="every org has a queue and reply keys of its own; needs signed_requests"
    )

    message_limit_bytes: int = _opt(
        1_000_000,
        "Largest message that a caller may send, in bytes. Larger ones are dropped.",
        least=10_000,
        most=100_000_000,
    )

    max_workers: int = _opt(0, "most live workers, slots included; 0 = no cap", least=0)
    hot_idle_ttl_s: int = _opt(60, "how long a released worker stays with its org by default", least=0)
    hot_idle_ttl_max_s: int = _opt(86_400, "longest such time that a call or an org may ask for", least=0)
    surplus_ttl_s: int = _opt(300, "idle above the warm target for so long goes", least=0)
    miss_fresh_s: int = _opt(60, "a miss counts as demand for so long", least=1)
    max_age_s: int = _opt(0, "a worker older than this leaves when unclaimed; 0 = never", least=0)
    rollout_step_percent: int = _opt(
        10, "workers of a changed profile replaced at a time, of all it has; at least one", least=1, most=100
    )
    rollout_ready_s: int = _opt(
        10, "a new worker replaces an old one once it has been ready for so long", least=0
    )

    pod_ready_limit_s: int = _opt(60, "longest that a pod may take to be ready", least=1)
    spawn_budget_s: int = _opt(
        90, "from slot to ready, queueing included; a lost spawn is sent again after it", least=1
    )
    stuck_cutoff_s: int = _opt(120, "a slot older than this is stuck and freed", least=1)
    unschedulable_limit_s: int = _opt(300, "a pod that finds no node is kept for so long", least=0)
    activation_budget_s: int = _opt(30, "longest activation of one worker", least=1)
    activation_heartbeat_s: int = _opt(2, "an activation says so often that it is alive", least=1)
    activation_stuck_s: int = _opt(15, "an activation silent for so long is dead", least=2)
    activation_tries: int = _opt(
        3, "workers tried before an acquire answers activation_failed", least=1, most=10
    )
    call_timeout_s: int = _opt(
        10, "longest single call to the database, the cluster or a worker", least=1, most=120
    )
    visibility_timeout_s: int = _opt(180, "an unacknowledged task is delivered again after this", least=10)
    result_expires_s: int = _opt(4500, "an answer is kept for so long; more than the longest wait", least=60)
    terminal_keep_s: int = _opt(86_400, "ended workers, claims and requests are kept for so long", least=60)
    journal_keep_s: int = _opt(7 * 86_400, "the journal is kept for so long", least=60)

    acquire_threads: int = _opt(8, "threads of an acquire worker", least=1, most=256)
    fleet_threads: int = _opt(50, "spawns and retires at once in one fleet worker", least=1, most=1000)
    bind_threads: int = _opt(20, "activations and stamps at once in one bind worker", least=1, most=1000)
    passes_threads: int = _opt(8, "threads of a pass worker; at least one a pass", least=7, most=64)
    pass_limit: int = _opt(500, "most rows that one run of a pass acts on", least=1)
    pass_failures_limit: int = _opt(10, "failed runs of one pass in a row that end its process", least=1)

    protect_before_grant: bool = _opt(default=False, doc="a grant waits until the pod is stamped as busy")
    metrics_port: int = _opt(
        0,
        "each process serves its metrics there; 0 = not at all; `up` gives each a free one",
        least=0,
        most=65_535,
    )
    metrics_host: str = _opt("127.0.0.1", "the address it serves them on; 0.0.0.0 in a container")
    events: bool = _opt(default=True, doc="send Celery task events, so that Flower sees what happens")
    headroom: int = _opt(0, "worker-sized placeholder pods; 0 = none", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A kind of worker. `[profiles.NAME]` in the file."""

    name: str = _opt("default", "its name: lower-case letters, digits and dashes")
    image: str = _opt("warmpool/reference-worker", "container image; the local driver only compares it")
    command: tuple[str, ...] = _opt(
        (), "command line; empty: the image's own, or locally the reference worker"
    )
    env: Mapping[str, str] = _opt({}, "extra environment variables")
    cpu_millicores: int = _opt(500, "requests = limits", least=1)
    memory_mib: int = _opt(512, "requests = limits", least=1)
    ephemeral_storage_mib: int = _opt(
        1024,
        "disk for /tmp, other emptyDirs and logs, in MiB; requests = limits, on Kubernetes only",
        least=1,
    )
    port: int = _opt(
        8080, "where the worker listens; the local driver picks a free one", least=1, most=65_535
    )
    warm_target: int = _opt(3, "idle workers kept ready", least=0)
    hot_idle_ttl_s: int | None = _opt(None, "overrides the pool's for this profile", least=0)
    activation_path: str = _opt(
        "", "POSTed to bind an org's configuration; empty: workers need no activation"
    )
    activation_payload: Mapping[str, Any] = _opt(
        {}, "JSON body; {org}, {claim_id} and {values.KEY} are filled in"
    )
    activation_budget_s: int | None = _opt(None, "overrides the pool's for this profile", least=1)
    probe_path: str = _opt("", "GET that must answer 2xx; empty: the driver's word is enough")
    grace_s: int = _opt(600, "a worker told to end may finish its sessions for so long", least=0)

    # What only the Kubernetes driver looks at.
    service_account: str = _opt("", "ServiceAccount of its pods; empty: the namespace's default")
    own_service_account: bool = _opt(default=False, doc="each pod has a ServiceAccount of its own instead")
    run_as_user: int | None = _opt(
        None, "user id of its containers, where the image names none by number", least=1
    )
    node_selector: Mapping[str, str] = _opt({}, "labels that its nodes must have")
    tolerations: tuple[Mapping[str, Any], ...] = _opt(
        (), "taints that it may stand beside, as Kubernetes writes them; each names its key"
    )
    affinity: Mapping[str, Any] = _opt({}, "affinity, as Kubernetes writes it")
    runtime_class: str = _opt("", "RuntimeClass of its pods; empty: the cluster's default")
    priority_class: str = _opt("", "PriorityClass of its pods; empty: [kubernetes] says")
    readiness_path: str = _opt(
        "/healthz", "GET that answers 2xx once a pod is ready; empty: ready when running"
    )
    volumes: tuple[Mapping[str, Any], ...] = _opt((), "extra volumes, as Kubernetes writes them")
    mounts: tuple[Mapping[str, Any], ...] = _opt((), "where they are mounted, as Kubernetes writes it")
    pod_labels: Mapping[str, str] = _opt({}, "extra labels of its pods")
    pod_annotations: Mapping[str, str] = _opt({}, "extra annotations of its pods")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSettings:
    """Where pods are made if the driver is `kubernetes`. `[kubernetes]` in the file, `WARMPOOL_KUBERNETES_<NAME>` in the environment."""

    namespace: str = _opt("", "namespace of the workers; empty: our own pod's, else the context's")
    kubeconfig: str = _opt("", "path of a kubeconfig; empty: our own pod's account, else the usual place")
    context: str = _opt("", "context of the kubeconfig; empty: its current one")
    qps: int = _opt(50, "calls a second that one process makes at most, over time", least=1, most=10_000)
    burst: int = _opt(100, "calls that it may make at once after a quiet time", least=1, most=10_000)
    relist_s: int = _opt(300, "the pod cache is filled anew so often, whatever the watch says", least=10)
    anchor: str = _opt(
        "warmpool-anchor", "ConfigMap that owns all pods and names this pool; deleting it deletes them"
    )
    pull_secrets: tuple[str, ...] = _opt((), "Secrets with which images are pulled")
    worker_priority_class: str = _opt("", "PriorityClass of workers, 0 or more; empty: the cluster's default")
    placeholder_priority_class: str = _opt(
        "warmpool-placeholder", "PriorityClass of headroom's placeholders, -10; it must exist"
    )
    placeholder_image: str = _opt("", "image that does nothing; empty: the profile's own, told to sleep")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgDefaults:
    """What an org has. `[orgs.NAME]` in the file seeds it; the table rules from then on."""

    cap: int = _opt(0, "most live claims; 0 = no cap", least=0)
    weight: float = _opt(1.0, "share among waiting orgs", least=0.001, most=1_000_000)
    hot_idle_floor: int = _opt(0, "parked workers kept past their TTL", least=0)
    hot_idle_cap: int = _opt(0, "most parked workers; 0 = no cap; beats the floor", least=0)
    hot_idle_ttl_s: int | None = _opt(None, "overrides the profile's and the pool's", least=0)
    values: Mapping[str, str] = _opt({}, "what activation payloads may refer to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One deployment's whole configuration."""

    pool: PoolSettings = field(default_factory=PoolSettings)
    profiles: Mapping[str, Profile] = field(default_factory=lambda: {"default": Profile()})
    orgs: Mapping[str, OrgDefaults] = field(default_factory=dict)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    orgs_auto_create: bool = _opt(default=True, doc="an org that nobody has named is made when it first asks")

    def ttl_s(self, profile: Profile, *, call: int | None, org: int | None) -> int:
        """How long a released worker stays parked: call > org > profile > pool, clamped."""
        chain = (call, org, profile.hot_idle_ttl_s, self.pool.hot_idle_ttl_s)
        chosen = next(v for v in chain if v is not None)
        return max(0, min(chosen, self.pool.hot_idle_ttl_max_s))

    def activation_budget_s(self, profile: Profile) -> int:
        """The longest that activating a worker of this profile may take."""
        return profile.activation_budget_s or self.pool.activation_budget_s


def nesting_problems(p: PoolSettings) -> list[str]:
    """Time budgets that do not nest, each as a sentence that names the settings. Asserted at every start-up."""
    longest_task_s = max(p.activation_budget_s, p.call_timeout_s) + p.call_timeout_s
    rules = [
        (p.spawn_budget_s >= p.pod_ready_limit_s, "spawn_budget_s must be at least pod_ready_limit_s"),
        (p.stuck_cutoff_s > p.spawn_budget_s, "stuck_cutoff_s must be more than spawn_budget_s"),
        (
            p.activation_stuck_s > 2 * p.activation_heartbeat_s,
            "activation_stuck_s must be more than twice activation_heartbeat_s",
        ),
        (
            p.visibility_timeout_s >= longest_task_s + 60,
            f"visibility_timeout_s must be at least {longest_task_s + 60} (activation_budget_s + call_timeout_s + 60)",
        ),
        (p.result_expires_s > 3600, "result_expires_s must be more than the longest wait_s, 3600"),
        (p.signed_requests or not p.queue_per_org, "queue_per_org needs signed_requests"),
        (p.hot_idle_ttl_s <= p.hot_idle_ttl_max_s, "hot_idle_ttl_s must be at most hot_idle_ttl_max_s"),
    ]
    return [sentence for holds, sentence in rules if not holds]
