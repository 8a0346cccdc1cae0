"""Names and patterns that several rooms share, each declared once. Pure."""

from __future__ import annotations

import re

# Celery queues. The role of a Celery worker has the name of the queue that it serves.
ACQUIRE = "acquire"
FLEET = "fleet"
BIND = "bind"
PASSES = "passes"
QUEUES = (ACQUIRE, FLEET, BIND, PASSES)

# Names of Redis keys. The broker users in `charts/warmpool/files/*.acl` and `pool.broker.acl` have
# rights to these.
REPLY_PREFIX = "warmpool.reply."
LOCK_PREFIX = "warmpool.lock."
NONCE_PREFIX = "warmpool.nonce."
RESULT_PREFIX = "celery-task-meta-"
# Calls that an acquire worker has taken and not answered, by tag, and since when.
TAKEN_KEY = "warmpool.taken"
TAKEN_SINCE_KEY = "warmpool.taken_since"
# Calls whose followers were sent.
FOLLOWED_PREFIX = "warmpool.followed."
# Keys that begin like this are no queue of a service.
RESERVED_PREFIXES = ("warmpool", "celery-task-meta-", "celery-taskset-meta-", "_kombu.", "unacked")
# Exists for ever; if it is missing, Redis was emptied.
KEPT_KEY = "warmpool.kept"
# Ends the name of an org inside a key. No org name contains it, so no prefix of one org matches the keys
# of another.
END_OF_ORG = ":"

# Exceptions that an outage raises, by class name; the client sees only the name.
OUTAGE_ERRORS = frozenset(
    {"BackendStoreError", "ConnectionError", "OperationalError", "TimeoutError", "Transient"}
)

ORG_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
ORG_NAME = re.compile(ORG_PATTERN)
ORG_NAME_RULE = "1 to 128 letters, digits, dots, dashes or underscores, starting with a letter or digit"
# A DNS label: the name of a profile, a pod or a namespace.
DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
DNS_LABEL_RULE = "1 to 63 lower-case letters, digits and dashes, not starting or ending with a dash"

# Labels and annotations of pods that belong to the pool.
LABEL_PREFIX = "warmpool.dev/"

# Environment variables that are settings are named by `pool.config.environment`. All others are here.
ENV_PREFIX = "WARMPOOL_"
ENV_CONFIG = "WARMPOOL_CONFIG"
ENV_ORGS_AUTO_CREATE = "WARMPOOL_ORGS_AUTO_CREATE"
# Given to the program of a pod; see `pool.drivers.contract`.
ENV_WORKER = "WARMPOOL_WORKER"
ENV_UID = "WARMPOOL_UID"
ENV_PROFILE = "WARMPOOL_PROFILE"
ENV_HOST = "WARMPOOL_HOST"
ENV_PORT = "WARMPOOL_PORT"
ENV_KEY_FILE = "WARMPOOL_KEY_FILE"
ENV_STATUS_FILE = "WARMPOOL_STATUS_FILE"
ENV_GRACE_S = "WARMPOOL_GRACE_S"
# Given to the command that `warmpool acquire` runs.
ENV_ENDPOINT = "WARMPOOL_ENDPOINT"
ENV_TOKEN = "WARMPOOL_TOKEN"  # noqa: S105 - a name
ENV_CLAIM = "WARMPOOL_CLAIM"
ENV_EPOCH = "WARMPOOL_EPOCH"
ENV_CURL_CONFIG = "WARMPOOL_CURL_CONFIG"
# Read by the client. The first is also a setting of the server.
ENV_BROKER_URL = "WARMPOOL_BROKER_URL"
ENV_ORG_KEY = "WARMPOOL_ORG_KEY"
ENV_ORG_KEY_FILE = "WARMPOOL_ORG_KEY_FILE"
# Given to the processes of the control plane.
ENV_RUN_PREFIX = "WARMPOOL_RUN_"
ENV_ROLE = "WARMPOOL_RUN_ROLE"
ENV_LOG_FORMAT = "WARMPOOL_RUN_LOG"
ENV_READY_FILE = "WARMPOOL_RUN_READY_FILE"
ENV_ALIVE_FILE = "WARMPOOL_RUN_ALIVE_FILE"
ENV_BOARD_PASSWORD = "WARMPOOL_RUN_BOARD_PASSWORD"  # noqa: S105 - a name
ENV_FLOWER_PASSWORD = "WARMPOOL_RUN_FLOWER_PASSWORD"  # noqa: S105 - a name
ENV_TEST_PREFIX = "WARMPOOL_TEST_"

# Variables that are not settings although they begin with the prefix.
ENV_NOT_SETTINGS = frozenset(
    {
        *(ENV_CONFIG, ENV_WORKER, ENV_UID, ENV_PROFILE, ENV_HOST, ENV_PORT, ENV_KEY_FILE, ENV_STATUS_FILE),
        *(ENV_GRACE_S, ENV_ENDPOINT, ENV_TOKEN, ENV_CLAIM, ENV_EPOCH, ENV_CURL_CONFIG),
        *(ENV_ORG_KEY, ENV_ORG_KEY_FILE),
    }
)
ENV_NOT_SETTINGS_PREFIXES = (ENV_CLAIM, ENV_RUN_PREFIX, ENV_TEST_PREFIX)


def queue_of(org: str) -> str:
    """Return the queue of an org that has its own queue."""
    return f"{ACQUIRE}.{org}."


def reply_prefix_of(org: str) -> str:
    """Return the prefix of the names of an org's reply lists."""
    return f"{REPLY_PREFIX}{task_prefix_of(org)}"


def task_prefix_of(org: str) -> str:
    """Return the prefix of an org's task ids, and so of the keys of its results."""
    return f"{org}{END_OF_ORG}"
