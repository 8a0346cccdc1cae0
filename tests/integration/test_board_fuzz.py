"""Invalid requests at every route of the board, over raw sockets: each gets a status below 500, and
the board continues to serve.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import pytest
from starlette.routing import Mount, Route

from pool.store import Store
from tests.support.board_client import BoardClient
from tests.support.board_server import PASSWORD, BoardServer
from tests.support.world import World

EVIL = (
    b"%00", b"a%00b", b"%ff", b"%c0%80", b"%ed%a0%80", b"%0d%0aX-Evil:%201", b"%1b[2J", b"%7f", b"%c2%85",
    b"%", b"%zz",
    b"%25%30%30", b"..%2f..%2fetc%2fpasswd", b"%2e%2e/", b"//", b"\\", b"'%20OR%201=1--", b"%25", b"_%25_",
    b"{}", b"[", b"]",
    b"-1", b"0", b"9" * 30, b"9" * 2000, b"9" * 6000, b"a" * 300, b"%f0%9f%94%a5", b"%ef%bf%bf", b"&&==;;",
    b"nan", b"1e9",
)  # fmt: skip
PLACES = (b"/", b"/events%s", b"/workers/%s", b"/fleet/%s", b"/fleet/orgs?part=%s", b"/act/workers/%s/drain", b"/act/workers/%s/retire",
          b"/act/passes/%s/pause", b"/act/passes/reap/%s", b"/act/%s/reap/pause", b"/sign-in?next=%s",
          b"/sign-out?%s", b"/api/status?%s",
          b"/api/get/%s", b"/api/get/workers?limit=%s", b"/api/get/workers?state=%s",
          b"/api/get/claims?org=%s",
          b"/api/get/requests?node=%s", b"/api/explain/worker/%s", b"/api/explain/request/acme/%s",
          b"/api/explain/request/%s/r",
          b"/healthz?%s", b"/static/%s", b"/static/board.css/%s", b"/%s")  # fmt: skip
RAW = (b"\x00", b"\xff\xfe", b"\x80", b"\r", b"\x1b", b"caf\xc3\xa9", b"\xed\xa0\x80")
FORMS = (
    b"name=%00&password=x", b"name=\x00", b"\xff\xfe", b"name=%ff&password=%ff", b"name=a&password=%ed%a0%80",
    b"&" * 500, b"=" * 500,
    b"a=1&" * 100, b"x" * 9000, b"token=%00&why=%00", b"next=%0d%0aX: 1&name=a&password=b", b'{"name": 1}',
    b"",
)  # fmt: skip
HOSTS = (b"127.0.0.1", b"[", b"[::1", b"", b"a" * 500, b"\xff", b"127.0.0.1:99999999", b"127.0.0.1:x", b"a b")


def answer(board: BoardServer, request: bytes) -> int:
    """Return the status of the response to raw bytes; 400 if the connection is closed without one."""
    with socket.create_connection(("127.0.0.1", board.port), timeout=30) as raw:
        raw.sendall(request)
        got = b""
        while b"\r\n" not in got and (more := raw.recv(4096)):
            got += more
    return int(got.split(b" ", 2)[1]) if got else 400


def asked(
    method: bytes, target: bytes, *headers: bytes, host: bytes = b"127.0.0.1", body: bytes = b""
) -> bytes:
    lines = [method + b" " + target + b" HTTP/1.1", b"Host: " + host, b"Connection: close", *headers]
    if method == b"POST":
        lines += [b"Content-Type: application/x-www-form-urlencoded", b"Content-Length: %d" % len(body)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def filled(place: bytes, evil: bytes) -> bytes:
    return place.replace(b"%s", evil)


@pytest.fixture
def board(world: World) -> Iterator[BoardServer]:
    with BoardServer(world) as made:
        yield made


@pytest.fixture
def operator(board: BoardServer) -> BoardClient:
    client = BoardClient(board)
    client.sign_in()
    return client


def test_every_route_is_tried(board: BoardServer) -> None:
    tried = {place.split(b"?")[0].decode().replace("%s", "").strip("/").split("/")[0] for place in PLACES}
    routes = [route for route in board.app.routes if isinstance(route, Route | Mount)]
    assert {route.path.strip("/").split("/")[0] for route in routes} <= tried


def test_no_path_or_query_causes_a_server_error(board: BoardServer, operator: BoardClient) -> None:
    cookie = b"Cookie: " + operator.cookie.encode()
    for place in PLACES:
        for evil in EVIL:
            code = answer(board, asked(b"GET", filled(place, evil), cookie))
            assert code < 500, (place, evil, code)
    assert operator.get("/")[0] == 200


@pytest.mark.parametrize("evil", [b"%00", b"%ff", b"%1b", b"a" * 6000])
def test_control_characters_invalid_utf8_and_huge_targets_get_4xx(
    board: BoardServer, operator: BoardClient, evil: bytes
) -> None:
    cookie = b"Cookie: " + operator.cookie.encode()
    for place in PLACES[2:]:
        assert 400 <= answer(board, asked(b"GET", filled(place, evil), cookie)) < 500, place
    for raw in RAW:
        assert 400 <= answer(board, asked(b"GET", b"/workers/" + raw)) < 500, raw


def test_no_form_causes_a_server_error(world: World, board: BoardServer, operator: BoardClient) -> None:
    [idle] = world.warm(1)
    act = f"/act/workers/{idle}/drain"
    cookie, token = b"Cookie: " + operator.cookie.encode(), operator.token(act).encode()
    for form in FORMS:
        for target in (b"/sign-in", b"/sign-out", act.encode(), b"/act/passes/reap/pause"):
            code = answer(board, asked(b"POST", target, cookie, body=form))
            assert 400 <= code < 500, (target, form, code)
    for why in (b"%00", b"%ff", b"%ed%a0%80", b"a%0ab"):
        code = answer(board, asked(b"POST", act.encode(), cookie, body=b"token=" + token + b"&why=" + why))
        assert code == 400, (why, code)
    assert world.state_of(idle) == "idle"


def test_no_cookie_host_or_origin_causes_a_server_error(store: Store) -> None:
    """Off loopback, where any host name is accepted. An unreadable cookie counts as not signed in."""
    right = PASSWORD.replace(" ", "+").encode()
    with BoardServer(World(store), host="0.0.0.0") as board:
        for raw in (*RAW, b"a" * 20_000, b"=;=;;", b"." * 100, b"AAAA.AAAA", b'"\\000"'):
            for header in (
                b"Cookie: warmpool_board=" + raw,
                b"Authorization: Basic " + raw,
                b"Origin: " + raw,
            ):
                code = answer(board, asked(b"GET", b"/api/status", header))
                assert 400 <= code < 500, (header, code)
        for host in HOSTS:
            for path in (b"/sign-in", b"/nothing", b"/act/workers/x/drain", b"/api/get/workers"):
                assert answer(board, asked(b"GET", path, host=host)) < 500, (host, path)
            for origin in (b"http://[", b"null", b"http://" + host):
                form = b"name=a&password=" + right
                code = answer(board, asked(b"POST", b"/sign-in", b"Origin: " + origin, host=host, body=form))
                assert code < 500, (host, origin, code)


def test_random_targets_cause_no_server_error(board: BoardServer, operator: BoardClient) -> None:
    chance, cookie = random.Random(14), b"Cookie: " + operator.cookie.encode()
    for _ in range(300):
        words = b"".join(
            chance.choice((*EVIL, b"/", b"?", b"#", b"workers")) for _ in range(chance.randrange(1, 6))
        )
        method = chance.choice((b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"BREW"))
        target = filled(chance.choice(PLACES), words)
        code = answer(board, asked(method, target, cookie))
        assert code < 500, (method, target, code)
