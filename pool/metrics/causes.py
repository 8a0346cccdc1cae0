"""The cause of a move as one of a few words. The journal keeps the whole sentence; a label must be bounded, so the sentence's beginning decides.
What begins in no known way is `other`."""

from __future__ import annotations

from functools import lru_cache

OTHER = "other"

# How the sentence begins: the word for it. The first that fits counts.
_BEGINNINGS: tuple[tuple[str, str], ...] = (
    ("target ", "demand"),
    ("ready", "ready"),
    ("claimed for ", "claimed"),
    ("activating", "activating"),
    ("activated", "activated"),
    ("activation_failed", "activation_failed"),
    ("released", "released"),
    ("tainted", "tainted"),
    ("expired", "lease_expired"),
    ("abandoned", "abandoned"),
    ("worker_lost", "pod_lost"),
    ("retired", "retired"),
    ("parked past its time", "ttl"),
    ("surplus", "surplus"),
    ("older than ", "age"),
    ("gives way", "gave_way"),
    ("spawn failed", "spawn_failed"),
    ("pod deleted", "pod_deleted"),
    ("its container ended", "pod_lost"),
    ("its pod is gone", "pod_lost"),
    ("its pod is absent", "pod_lost"),
    ("its pod was stamped", "table_behind"),
    ("its pod is terminating", "disrupted"),
    ("its pod is not ready", "unhealthy"),
    ("the embedded pool was stopped", "stopped"),
    ("drain", "operator"),
)
# Where the beginning is a name or a number.
_INSIDE: tuple[tuple[str, str], ...] = (
    ("probes in a row failed", "unhealthy"),
    ("more parked workers than its cap", "park_cap"),
    ("evict", "disrupted"),
    ("node", "disrupted"),
    ("preempt", "disrupted"),
)
CAUSES = tuple(dict.fromkeys([*(w for _, w in _BEGINNINGS), *(w for _, w in _INSIDE), OTHER]))


@lru_cache(maxsize=4096)
def cause(why: str) -> str:
    """The word for a sentence."""
    found = next((word for start, word in _BEGINNINGS if why.startswith(start)), None)
    return found or next((word for part, word in _INSIDE if part in why.lower()), OTHER)
