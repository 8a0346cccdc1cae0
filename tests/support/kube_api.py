"""The Kubernetes API over plain HTTP: tests act on a cluster without any driver."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class ApiError(Exception):
    """An error response of the server."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Access to a cluster as one user. The certificate authority and the client's certificate are
    PEM.
    """

    server: str
    authority: str
    token: str = ""
    certificate: str = ""
    key: str = ""

    def kubeconfig(self) -> str:
        """Return a kubeconfig for any client; JSON is valid YAML."""
        who: Object = {"token": self.token} if self.token else {}
        if self.certificate:
            who |= {
                "client-certificate-data": _encoded(self.certificate),
                "client-key-data": _encoded(self.key),
            }
        cluster = {"server": self.server, "certificate-authority-data": _encoded(self.authority)}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": who}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "current-context": "it",
            },
            indent=1,
        )


class ApiClient:
    """One client; safe to use from many threads."""

    def __init__(self, access: ApiAccess, *, connections: int = 20) -> None:
        self._server = access.server
        headers = {"Accept": "application/json"}
        if access.token:
            headers["Authorization"] = f"Bearer {access.token}"
        context = ssl.create_default_context(cadata=access.authority or None)
        _present(context, access)
        self._pool = urllib3.PoolManager(
            maxsize=connections, ssl_context=context, headers=headers, retries=False
        )

    def get(self, path: str, **query: str) -> Object:
        return self.call("GET", path, query=query)

    def create(self, path: str, content: Mapping[str, Any]) -> Object:
        return self.call("POST", path, content)

    def patch(self, path: str, content: Mapping[str, Any], *, kind: str = MERGE) -> Object:
        return self.call("PATCH", path, content, kind=kind)

    def delete(self, path: str, *, grace_s: int | None = None, uid: str = "") -> Object:
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if uid:
            options["preconditions"] = {"uid": uid}
        return self.call("DELETE", path, options)

    def find(self, path: str) -> Object | None:
        """Return the object, or None if it does not exist."""
        try:
            return self.get(path)
        except ApiError as exc:
            if exc.code == 404:
                return None
            raise

    def call(
        self, method: str, path: str, content: Mapping[str, Any] | None = None, *,
        query: Mapping[str, str] | None = None, kind: str = "application/json", timeout_s: float = 10.0,
    ) -> Object:  # fmt: skip
        """Make one call, never repeated. Raises ApiError, or urllib3's HTTPError if the server is
        unreachable.
        """
        answer = self._pool.request(
            method, self._url(path, query), body=None if content is None else json.dumps(content),
            headers={**self._pool.headers, "Content-Type": kind}, timeout=timeout_s,
        )  # fmt: skip
        text = answer.data.decode()
        if answer.status >= 300:
            raise ApiError(answer.status, _message(text))
        found: Object = json.loads(text) if text.startswith("{") else {"text": text}
        return found

    def watch(self, path: str, *, seconds: int, **query: str) -> ApiWatch:
        """Return the events from a resourceVersion on, until the server ends the watch."""
        asked = query | {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        answer = self._pool.request(
            "GET", self._url(path, asked), preload_content=False,
            timeout=urllib3.Timeout(connect=5, read=seconds + 5)
        )  # fmt: skip
        if answer.status >= 300:
            raise ApiError(answer.status, _message(answer.data.decode()))
        return ApiWatch(answer)

    def close(self) -> None:
        self._pool.clear()

    def _url(self, path: str, query: Mapping[str, str] | None) -> str:
        return f"{self._server}{path}" + (f"?{urlencode(query)}" if query else "")


class ApiWatch:
    """A stream of events: (type, object)."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        for line in self._answer:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
            yield event["type"], event["object"]

    def stop(self) -> None:
        """End the stream from another thread."""
        with suppress(ValueError, RuntimeError, OSError):
            self._answer.shutdown()

    def close(self) -> None:
        # Not returned to the connection pool: the rest of the stream is unread.
        self._answer.close()


def _message(text: str) -> str:
    try:
        return str(json.loads(text).get("message", text))
    except ValueError:
        return text


def _present(context: ssl.SSLContext, access: ApiAccess) -> None:
    """Load the client's certificate; ssl reads it only from files."""
    if access.certificate:
        with tempfile.TemporaryDirectory(prefix="wp-kube-cert-") as place:
            certificate, key = Path(place) / "crt", Path(place) / "key"
            certificate.write_text(access.certificate)
            key.write_text(access.key)
            context.load_cert_chain(certificate, key)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
