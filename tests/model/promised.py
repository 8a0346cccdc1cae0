"""The oracle: the promises to callers, written from the list of promises and kept beside the real
pool. It has only requests, answers, events of pods and the time; it shares no code with the pool.
It must allow every answer and every end of a claim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

LANE_GAP_S = 10.0


@dataclass
class ModelHold:
    """A claim that was granted to a caller."""

    claim_id: str
    worker_id: str
    org: str
    epoch: int
    lease_s: int
    lease_until: datetime
    released: bool = False
    over: bool = False


@dataclass
class Promised:
    """All promises so far."""

    holds: dict[str, ModelHold] = field(default_factory=dict)
    asked: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    claim_of: dict[tuple[str, str], str] = field(default_factory=dict)
    given_up: set[tuple[str, str]] = field(default_factory=set)
    org_of: dict[str, str] = field(default_factory=dict)
    epoch_of: dict[str, int] = field(default_factory=dict)
    dead_pods: set[str] = field(default_factory=set)
    # When each canary passed: not before, not after.
    canaries: list[tuple[datetime, datetime]] = field(default_factory=list)
    most_claims: dict[str, int] = field(default_factory=dict)

    def granted(self, key: tuple[str, str], answer: dict[str, Any], lease_s: int) -> None:
        """A grant was returned for this request (promises 1 to 4, 30)."""
        claim, worker, org, epoch = answer["claim_id"], answer["worker_id"], key[0], answer["epoch"]
        until = datetime.fromisoformat(answer["lease_expires_at"])
        known = self.claim_of.setdefault(key, claim)
        assert known == claim, f"request {key} was granted twice: {known} and {claim}"
        if claim in self.holds:
            assert not self.holds[claim].over, f"{claim} was returned as granted after it had ended"
            return
        others = [h for h in self.holds.values() if h.worker_id == worker and not h.over and not h.released]
        assert not others, f"{worker} was given to {org} while {others[0].org} holds it"
        assert self.org_of.setdefault(worker, org) == org, (
            f"{worker} served {self.org_of[worker]} and now {org}"
        )
        assert epoch > self.epoch_of.get(worker, 0), f"{worker} was given at epoch {epoch} again"
        self.epoch_of[worker] = epoch
        self.holds[claim] = ModelHold(claim, worker, org, epoch, lease_s, until)

    def refused(self, key: tuple[str, str], answer: dict[str, Any]) -> None:
        """A refusal was returned: a request that holds a worker is never refused, unless its claim
        has ended.
        """
        claim = self.claim_of.get(key)
        if claim is not None and answer["reason"] not in {"invalid", "paused"}:
            assert answer["reason"] == "request_spent", f"{key} was granted before and now {answer}"
            hold = self.holds.get(claim)
            assert hold is None or hold.over or hold.released, f"{claim} lives and its request is spent"

    def ended(self, claim_id: str, why: str, at: datetime) -> None:
        """The pool has ended a granted claim: check that it was allowed (promises 3, 8, 9, 16)."""
        hold = self.holds[claim_id]
        hold.over = True
        if why in {"released", "tainted", "abandoned"}:
            assert hold.released, f"{claim_id} was ended as {why}, and it was not released"
        elif why == "worker_lost":
            assert hold.worker_id in self.dead_pods, f"{claim_id} was ended as lost, and its pod is healthy"
        elif why == "expired":
            self._may_expire(hold, at)
        else:
            raise AssertionError(f"{claim_id} was ended because of {why!r} after it had been granted")

    def _may_expire(self, hold: ModelHold, at: datetime) -> None:
        # An outage of the lane that is shorter than the gap goes unseen; a holder renews at a third
        # of its lease.
        until = hold.lease_until + timedelta(seconds=max(0.0, LANE_GAP_S - hold.lease_s / 3))
        assert at > until, f"{hold.claim_id} was ended at {at}, before its lease was over"
        began = at - timedelta(seconds=hold.lease_s)
        before = [c for c in self.canaries if c[1] <= began]
        within = [c for c in self.canaries if c[1] > began and c[0] <= at]
        moments = [*before[-1:], *within, (at, at)]
        gaps = [(b[0] - a[1]).total_seconds() for a, b in pairwise(moments)]
        assert len(moments) > 1, f"{hold.claim_id} expired though no canary ever came through"
        assert max(gaps) <= LANE_GAP_S, (
            f"{hold.claim_id} expired although no renewal was possible for {max(gaps)} s"
        )

    def cap_changed(self, org: str, cap: int, live: int) -> None:
        """Claims above a new cap stay; no more are granted."""
        self.most_claims[org] = max(cap, live) if cap else 10**9

    def counted(self, org: str, live: int, cap: int) -> None:
        """`live` claims of this org are live now (promise 29)."""
        most = self.most_claims.get(org, 10**9)
        assert live <= most, f"{org} holds {live} workers, {most} are allowed"
        if cap:
            self.most_claims[org] = max(cap, min(most, live))
