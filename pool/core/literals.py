"""The words of the task contract as types, for callers. `Reason` and `Source` are the same words as
enums; a newer server may send others.
"""

from __future__ import annotations

from typing import Literal

RefusalReason = Literal[
    "org_cap",
    "pool_cap",
    "no_warm_worker",
    "wait_timeout",
    "cancelled",
    "unknown_profile",
    "unknown_org",
    "paused",
    "activation_failed",
    "request_spent",
    "invalid",
]
WorkerSource = Literal["hot_idle", "warm"]
ReleaseCondition = Literal["clean", "tainted"]
ReleaseOutcome = Literal["released", "already_released", "unknown_claim"]
CancelOutcome = Literal["cancelled", "already_answered", "unknown_request"]
