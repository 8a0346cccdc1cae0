"""Claim tokens: derived, never stored, checked by the worker without asking anybody.

A worker's key is derived from the master key and given to the worker alone, so a worker that leaks its key leaks only
itself. The token binds one claim and one epoch; a worker refuses an epoch lower than one it has seen.
"""

from __future__ import annotations

import hmac

HEADER_CLAIM = "X-Warmpool-Claim"
HEADER_EPOCH = "X-Warmpool-Epoch"


def worker_key(master_key: bytes, worker_id: str) -> str:
    """The key of one worker, in hex."""
    return hmac.digest(master_key, f"worker|{worker_id}".encode(), "sha256").hex()


def token(key: str, claim_id: str, epoch: int) -> str:
    """The proof that `claim_id` holds the worker with this key at this epoch."""
    return hmac.digest(bytes.fromhex(key), f"{claim_id}|{epoch}".encode(), "sha256").hex()


def verify(key: str, claim_id: str, epoch: int, presented: str) -> bool:
    """Whether `presented` is that proof; takes the same time whatever it is given."""
    return hmac.compare_digest(token(key, claim_id, epoch).encode(), presented.encode())


def headers(claim_id: str, epoch: int, presented: str) -> dict[str, str]:
    """The HTTP headers by which a holder shows its claim to the worker."""
    return {"Authorization": f"Bearer {presented}", HEADER_CLAIM: claim_id, HEADER_EPOCH: str(epoch)}
