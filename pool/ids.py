"""Ids: their types, and the one place that makes them."""

from __future__ import annotations

import secrets
import uuid
from typing import NewType, Protocol

WorkerId = NewType("WorkerId", str)
ClaimId = NewType("ClaimId", str)
OrgId = NewType("OrgId", str)
ProfileName = NewType("ProfileName", str)
RequestPk = NewType("RequestPk", str)
TaskId = NewType("TaskId", str)

# Crockford's alphabet in lower case: sorts as it counts, valid in DNS labels, no letter that reads as a digit.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 20


class Ids(Protocol):
    """Makes ids that nobody else has made."""

    def worker(self) -> WorkerId: ...

    def claim(self) -> ClaimId: ...

    def request(self) -> RequestPk: ...

    def token(self) -> str: ...


class RandomIds:
    """100 random bits each; a worker's id is also its pod's name."""

    def worker(self) -> WorkerId:
        return WorkerId(f"w-{_random()}")

    def claim(self) -> ClaimId:
        return ClaimId(f"c-{_random()}")

    def request(self) -> RequestPk:
        return RequestPk(f"r-{_random()}")

    def token(self) -> str:
        return secrets.token_hex(16)


def new_task_id() -> TaskId:
    """A Celery task id for a message that we publish ourselves."""
    return TaskId(str(uuid.uuid4()))


def _random() -> str:
    bits = secrets.randbits(5 * _LENGTH)
    return "".join(_ALPHABET[(bits >> (5 * i)) & 31] for i in range(_LENGTH))
