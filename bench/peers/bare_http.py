"""A minimal client of the API server: persistent connections, prepared bodies, and responses of
which only the needed fields are parsed.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from urllib.parse import urlsplit

from tests.support.kube_api import ApiAccess

_UID = re.compile(rb'"uid":"([0-9a-f-]{36})","resourceVersion"')


class BareClient:
    """A connection for each thread that uses it."""

    def __init__(self, access: ApiAccess) -> None:
        self._at = urlsplit(access.server).netloc
        self._tls = ssl.create_default_context(cadata=access.authority)
        self._headers = {"Authorization": f"Bearer {access.token}", "Content-Type": "application/json"}
        self._own = threading.local()

    def post(self, path: str, body: bytes) -> bytes:
        """The created objects."""
        status, answer = self._call("POST", path, body)
        if status != 201:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
        return answer

    def patch(self, path: str, body: bytes) -> None:
        """Apply a merge patch."""
        status, answer = self._call("PATCH", path, body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]!r}")

    def get(self, path: str) -> bytes:
        status, answer = self._call("GET", path, None)
        if status != 200:
            raise RuntimeError(f"{status}: {answer[:300]!r}")
        return answer

    def _call(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPSConnection(self._at, context=self._tls, timeout=60)
        connection: http.client.HTTPSConnection = self._own.connection
        content = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        connection.request(method, path, body, self._headers | content)
        response = connection.getresponse()
        return response.status, response.read()


def uid_in(answer: bytes) -> str:
    """Return the uid of an object that was just created."""
    found = _UID.search(answer)
    if found is None:
        raise RuntimeError(f"no uid in {answer[:300]!r}")
    return found.group(1).decode()
