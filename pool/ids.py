"""Ids: their types, and the one place that makes them."""

from __future__ import annotations

import secrets
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
# Any byte as one of its letters: 256 is a multiple of 32, so all are as likely.
_LETTERS = (_ALPHABET * 8).encode()


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
    """A Celery task id for a message that we publish ourselves: a random UUID, without the object."""
    h = secrets.token_hex(16)
    return TaskId(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}")


def _random() -> str:
    return secrets.token_bytes(_LENGTH).translate(_LETTERS).decode()
