"""A minimal HTTP client, for tests of the board."""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from tests.support.board_server import PASSWORD


class Served(Protocol):
    """A board that listens on this machine."""

    port: int


@dataclass
class BoardResponse:
    """A response; header names are in lower case."""

    status: int
    headers: dict[str, str]
    text: str


class BoardClient:
    """Keeps its cookie and follows no redirect. `address` is its source address, any of
    127.0.0.0/8.
    """

    def __init__(self, board: Served, *, address: str = "127.0.0.1") -> None:
        self._port, self._address, self.cookie = board.port, address, ""

    def ask(
        self, method: str, path: str, form: dict[str, str] | None = None, **headers: str
    ) -> BoardResponse:
        given = {k.replace("_", "-"): v for k, v in headers.items()}
        given |= {"Cookie": self.cookie} if self.cookie else {}
        given |= {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
        ours = (self._address, 0)
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=30, source_address=ours)
        ) as connection:
            connection.request(method, path, body=None if form is None else urlencode(form), headers=given)
            with connection.getresponse() as got:
                answer = BoardResponse(got.status, dict(got.getheaders()), got.read().decode())
        lower = {k.lower(): v for k, v in answer.headers.items()}
        if "set-cookie" in lower:
            self.cookie = lower["set-cookie"].split(";")[0]
        return BoardResponse(answer.status, lower, answer.text)

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        answer = self.ask("GET", path, None, **headers)
        return answer.status, answer.text

    def json(self, path: str) -> Any:
        status, text = self.get(path)
        assert status == 200, text
        return json.loads(text)

    def post(self, path: str, form: dict[str, str], **headers: str) -> int:
        return self.ask("POST", path, form, **headers).status

    def sign_in(self, name: str = "alice") -> None:
        assert self.post("/sign-in", {"name": name, "password": PASSWORD, "next": "/"}) == 303

    def token(self, path: str) -> str:
        return self.get(path)[1].split('name="token" value="')[1].split('"')[0]
