"""Which callers may act on the board, over HTTP from several addresses of this machine: the
password by address, trusted proxies, single sign-on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pool.core.states import State
from pool.ops.board.attempts import FREE
from pool.ops.board.proxies import Proxies
from pool.ops.board.users import SignOn
from pool.store import Store
from tests.support.board_client import BoardClient, BoardResponse
from tests.support.board_server import PASSWORD, BoardServer
from tests.support.world import World

HERE, THERE, PROXY = "127.0.0.3", "127.0.0.4", "127.0.0.9"
USER, GROUPS = "X_Auth_Request_User", "X_Auth_Request_Groups"
SIGN_ON = SignOn(
    user_header="X-Auth-Request-User",
    groups_header="X-Auth-Request-Groups",
    operators=frozenset({"alice@acme.test"}),
    operator_groups=frozenset({"sre"}),
)
WRONG = {"name": "mallory", "password": "guess"}


@pytest.fixture
def board(world: World) -> Iterator[BoardServer]:
    with BoardServer(world, proxies=Proxies.parse([PROXY]), sign_on=SIGN_ON) as made:
        yield made


def signed_in(client: BoardClient, **headers: str) -> BoardResponse:
    return client.ask("POST", "/sign-in", {"name": "alice", "password": PASSWORD}, **headers)


def test_ten_wrong_passwords_lock_out_only_the_address_that_sent_them(store: Store) -> None:
    with BoardServer(World(store)) as board:
        before, mallory = BoardClient(board, address=HERE), BoardClient(board, address=HERE)
        before.sign_in()
        assert {mallory.post("/sign-in", WRONG) for _ in range(10)} == {403, 429}
        assert signed_in(BoardClient(board, address=THERE)).status == 303
        locked = signed_in(BoardClient(board, address=HERE))
        assert locked.status == 429
        assert int(locked.headers["retry-after"]) >= 1
        assert "Sign out" in before.get("/")[1], "a session is not asked for its address"


def test_wrong_passwords_in_a_header_lock_out_only_their_address(store: Store) -> None:
    wrong, right = "Basic YWxpY2U6d3Jvbmc=", "Basic YWxpY2U6b3BlbiBzZXNhbWU="
    with BoardServer(World(store), host="0.0.0.0") as board:
        here, there = BoardClient(board, address=HERE), BoardClient(board, address=THERE)
        assert [here.get("/api/status", Authorization=wrong)[0] for _ in range(FREE)] == [401] * FREE
        assert here.get("/api/status", Authorization=right)[0] == 429
        assert there.get("/api/status", Authorization=right)[0] == 200
        assert here.get("/healthz")[0] == 200


def test_a_caller_cannot_choose_its_address_unless_it_is_a_trusted_proxy(board: BoardServer) -> None:
    mallory, proxy = BoardClient(board, address=HERE), BoardClient(board, address=PROXY)
    for n in range(FREE):
        assert mallory.post("/sign-in", WRONG, X_Forwarded_For=f"192.0.2.{n}") == 403
    assert mallory.post("/sign-in", WRONG, X_Forwarded_For="192.0.2.99") == 429
    for _ in range(FREE):
        assert proxy.post("/sign-in", WRONG, X_Forwarded_For="6.6.6.6, 198.51.100.1") == 403
    assert proxy.post("/sign-in", WRONG, X_Forwarded_For="7.7.7.7, 198.51.100.1") == 429
    assert signed_in(proxy, X_Forwarded_For="198.51.100.2").status == 303


def test_even_a_caller_on_loopback_cannot_choose_its_address(store: Store) -> None:
    with BoardServer(World(store)) as board:
        client = BoardClient(board)
        for n in range(FREE):
            assert client.post("/sign-in", WRONG, X_Forwarded_For=f"192.0.2.{n}") == 403
        assert client.post("/sign-in", WRONG, X_Forwarded_For="192.0.2.99") == 429


def test_the_cookie_is_secure_if_the_caller_uses_tls(board: BoardServer) -> None:
    def cookie(address: str, **headers: str) -> list[str]:
        answer = signed_in(BoardClient(board, address=address), **headers)
        assert answer.status == 303
        return [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]

    for given in (cookie(PROXY, X_Forwarded_Proto="https"), cookie(PROXY), cookie(HERE)):
        assert {"httponly", "samesite=strict"} <= set(given)
    assert "secure" in cookie(PROXY, X_Forwarded_Proto="https")
    assert "secure" not in cookie(PROXY, X_Forwarded_Proto="http")
    assert "secure" not in cookie(HERE, X_Forwarded_Proto="https")


def test_a_setting_makes_every_cookie_secure(store: Store) -> None:
    with BoardServer(World(store), secure_cookie=True) as board:
        assert "secure" in signed_in(BoardClient(board)).headers["set-cookie"].lower().split("; ")


def test_a_viewer_sees_no_buttons_and_gets_403_on_every_action(world: World, board: BoardServer) -> None:
    [idle] = world.warm(1)
    viewer = BoardClient(board, address=PROXY)
    bob = {USER: "bob@acme.test", GROUPS: "dev"}
    page = viewer.get("/", **bob)[1]
    assert "bob@acme.test" in page
    assert 'class="can-act"' not in page
    assert "Sign in to act" not in page
    assert "/act/" not in viewer.get(f"/workers/{idle}", **bob)[1]
    for path in (f"/act/workers/{idle}/drain", f"/act/workers/{idle}/retire", "/act/passes/reap/pause"):
        assert viewer.get(path, **bob)[0] == 403
        assert viewer.post(path, {"token": board.app.state.board.gate.form_token("x")}, **bob) == 403
    assert world.state_of(idle) is State.IDLE
    assert not world.rows("passes")


@pytest.mark.parametrize("given", [{USER: "alice@acme.test"}, {USER: "carol", GROUPS: "dev,sre"}])
def test_an_operator_of_single_sign_on_acts_and_the_journal_names_the_user(
    world: World, board: BoardServer, given: dict[str, str]
) -> None:
    [idle] = world.warm(1)
    client, path = BoardClient(board, address=PROXY), f"/act/workers/{idle}/drain"
    page = client.get(path, **given)[1]
    assert 'class="can-act"' in page
    assert "Sign out" not in page
    token = page.split('name="token" value="')[1].split('"')[0]
    others = client.get(path, **{USER: "alice@acme.test"} if GROUPS in given else {USER: "d", GROUPS: "sre"})
    theirs = others[1].split('name="token" value="')[1].split('"')[0]
    assert client.post(path, {"token": theirs}, **given) == 403, "a form belongs to its user"
    assert client.post(path, {"token": token}, Origin="https://elsewhere.test", **given) == 403
    ours = {"Origin": "https://board.acme.test", "X_Forwarded_Host": "board.acme.test"}
    assert client.post(path, {"token": token, "why": "old"}, **ours, **given) == 303
    assert world.state_of(idle) is State.DRAINING
    assert world.rows("journal")[-1].who == f"{given[USER]} (board, single sign-on)"


def test_a_user_header_that_comes_from_no_trusted_proxy_is_ignored(world: World, board: BoardServer) -> None:
    [idle] = world.warm(1)
    mallory, path = BoardClient(board, address=HERE), f"/act/workers/{idle}/drain"
    given = {USER: "alice@acme.test", GROUPS: "sre", "X_Forwarded_For": PROXY}
    assert mallory.ask("GET", path, None, **given).headers["location"].startswith("/sign-in?next=")
    assert mallory.post(path, {}, **given) == 303
    assert "alice@acme.test" not in mallory.get("/", **given)[1]
    assert world.state_of(idle) is State.IDLE


def test_off_loopback_reading_needs_single_sign_on(store: Store) -> None:
    given = {"password": "", "host": "0.0.0.0", "proxies": Proxies.parse([PROXY]), "sign_on": SIGN_ON}
    with BoardServer(World(store), **given) as board:  # type: ignore[arg-type]
        proxy, other = BoardClient(board, address=PROXY), BoardClient(board, address=HERE)
        assert proxy.get("/api/status", **{USER: "bob"})[0] == 200
        assert proxy.get("/api/status")[0] == 401
        assert other.get("/api/status", **{USER: "bob"})[0] == 401
        assert other.post("/sign-in", {"name": "bob", "password": ""}) == 403


def test_without_the_setting_no_header_names_a_user(store: Store) -> None:
    with BoardServer(World(store), host="0.0.0.0", proxies=Proxies.parse([PROXY])) as board:
        for header in ("X-Forwarded-User", "X-Auth-Request-User", "Remote-User"):
            assert BoardClient(board, address=PROXY).get("/api/status", **{header: "alice"})[0] == 401
