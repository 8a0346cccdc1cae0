"""Claim tokens: derived, never stored, and verified by the worker offline.

The key of a worker is derived from the master key and given only to that worker, so a leaked key
compromises only that worker. A token is valid for one claim and one epoch; a worker refuses epochs
lower than the highest it has seen.
"""

from __future__ import annotations

import hmac

HEADER_CLAIM = "X-Warmpool-Claim"
HEADER_EPOCH = "X-Warmpool-Epoch"


def worker_key(master_key: bytes, worker_id: str) -> str:
    """Return the key of one worker, in hex."""
    return hmac.digest(master_key, f"worker|{worker_id}".encode(), "sha256").hex()


def token(key: str, claim_id: str, epoch: int) -> str:
    """Return the token that proves that `claim_id` holds the worker with this key at this epoch."""
    return hmac.digest(bytes.fromhex(key), f"{claim_id}|{epoch}".encode(), "sha256").hex()


def verify(key: str, claim_id: str, epoch: int, presented: str) -> bool:
    """Return whether `presented` is the valid token, in constant time."""
    return hmac.compare_digest(token(key, claim_id, epoch).encode(), presented.encode())


def headers(claim_id: str, epoch: int, presented: str) -> dict[str, str]:
    """Return the HTTP headers with which a holder proves its claim to the worker."""
    return {"Authorization": f"Bearer {presented}", HEADER_CLAIM: claim_id, HEADER_EPOCH: str(epoch)}
