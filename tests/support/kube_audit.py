"""The API server's audit log, so that tests count calls where they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

READ_VERBS = frozenset({"get", "list", "watch"})

# One record per call, written when it is answered; for a watch, when it has begun.
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "users": ["system:apiserver"]}, {"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRequest:
    """One call as the API server recorded it."""

    verb: str
    resource: str
    user: str
    code: int
    namespace: str = ""
    name: str = ""
    path: str = ""
    # When it was answered, by this machine's wall clock.
    at: float = 0.0

    @property
    def is_write(self) -> bool:
        """A review is only formally created: it queries permissions and is not stored."""
        return self.verb not in READ_VERBS and not self.resource.endswith("accessreviews")

    @property
    def is_marker(self) -> bool:
        """Return whether the call was made only as a marker in the log."""
        return "/version?settle=" in self.path


def marker(number: int) -> str:
    """Return a path that is requested only as a marker in the log."""
    return f"/version?settle={number}"


def recorded(log: Path, since: int) -> Iterator[AuditedRequest]:
    """Read the log from that byte on. A line that began before it and an incomplete last line are left
    out.
    """
    with log.open("rb") as lines:
        if since:
            lines.seek(since - 1)
            lines.readline()
        for line in lines:
            record = json.loads(line) if line.endswith(b"\n") else {}
            once = "ResponseStarted" if record.get("verb") == "watch" else "ResponseComplete"
            if record.get("stage") == once:
                yield _request(record)


def _request(record: Mapping[str, Any]) -> AuditedRequest:
    what = record.get("objectRef", {})
    resource = "/".join(word for word in (what.get("resource"), what.get("subresource")) if word)
    return AuditedRequest(
        verb=record["verb"], resource=resource, user=record["user"].get("username", ""),
        code=record.get("responseStatus", {}).get("code", 0), namespace=what.get("namespace", ""),
        name=what.get("name", ""), path=record["requestURI"],
        at=datetime.fromisoformat(record["stageTimestamp"]).timestamp(),
    )  # fmt: skip
