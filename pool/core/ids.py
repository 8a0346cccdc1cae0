"""The types of ids, and the only place that generates them."""

from __future__ import annotations

import secrets
from typing import NewType, Protocol

WorkerId = NewType("WorkerId", str)
ClaimId = NewType("ClaimId", str)
OrgId = NewType("OrgId", str)
ProfileName = NewType("ProfileName", str)
RequestPk = NewType("RequestPk", str)
TaskId = NewType("TaskId", str)

# Crockford's base 32 in lower case: sortable, valid in DNS labels, without letters that look like digits.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 20
# Maps each byte to a letter. 256 is a multiple of 32, so all letters are equally likely.
_LETTERS = (_ALPHABET * 8).encode()


class Ids(Protocol):
    """Generates unique ids."""

    def worker(self) -> WorkerId: ...

    def token(self) -> str: ...


class RandomIds:
    """Generates ids of 100 random bits. The id of a worker is also the name of its pod."""

    def worker(self) -> WorkerId:
        return WorkerId(f"w-{_random()}")

    def request(self) -> RequestPk:
        return RequestPk(f"r-{_random()}")

    def token(self) -> str:
        return secrets.token_hex(16)


def new_task_id() -> TaskId:
    """Return a new Celery task id: a random UUID as a string, without the cost of a UUID object."""
    h = secrets.token_hex(16)
    return TaskId(f"{h[:8]}-{h[8:12]}-4{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}")


def _random() -> str:
    return secrets.token_bytes(_LENGTH).translate(_LETTERS).decode()
