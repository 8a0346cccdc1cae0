"""The board over HTTP: the CLI's JSON, one read for all browsers, actions only for signed-in users,
and security headers.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event

from pool.core.states import State
from pool.ops import reporting
from pool.passes.reap import DELETE_GRACE_S
from pool.store import Store
from pool.store.operator_queries import ListFilter
from tests.support.board_client import BoardClient
from tests.support.board_server import PASSWORD, BoardServer
from tests.support.busy_hour import many
from tests.support.waiting import eventually
from tests.support.world import World


@pytest.fixture
def board(world: World) -> Iterator[BoardServer]:
    with BoardServer(world) as made:
        yield made


def _steady(value: Any) -> Any:
    """Return it without values that change with time."""
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if k != "at" and not k.endswith("_s")}
    return [_steady(v) for v in value] if isinstance(value, list) else value


def test_the_json_is_what_the_cli_prints(world: World, board: BoardServer) -> None:
    world.warm(2)
    got = world.granted("acme")
    world.waits("bolt", request_id="r/1", profile="default", wait_s=60) if not world.workers(
        State.IDLE
    ) else None
    client, settings = BoardClient(board), world.deps.settings
    assert _steady(client.json("/api/status")) == _steady(reporting.status(world.store, settings))
    for kind in reporting.KINDS:
        assert _steady(client.json(f"/api/get/{kind}")) == _steady(
            reporting.table(world.store, settings, kind, ListFilter())
        )
    assert [w["id"] for w in client.json("/api/get/workers?state=hot&org=acme")] == [got.worker_id]
    assert client.json(f"/api/explain/worker/{got.worker_id}")["story"][-1]["org"] == "acme"
    assert client.get("/api/get/nothing")[0] == 404
    assert client.get("/api/get/workers?state=none")[0] == 400
    assert client.get("/api/explain/worker/w-none")[0] == 404
    assert client.get("/workers/w-none")[0] == 404
    assert client.get("/nothing")[0] == 404


def test_placeholders_that_are_missing_are_shown(world: World) -> None:
    world.profile(headroom=3)
    world.run_pass("reconcile_headroom")
    with BoardServer(world) as board:
        page = BoardClient(board).get("/")[1]
    assert '<div class="number attention"><b>0</b><span>placeholders of 3</span></div>' in page
    assert "profile default: 0 of 3 placeholders of its headroom are running" in page


def test_worker_in_use_that_fails_its_probes_is_on_the_board(world: World, board: BoardServer) -> None:
    world.profile(probe_path="/healthz", warm_target=0)
    world.warm(1)
    sick = world.granted("acme")
    for _ in range(3):
        world.run_pass("sweep_stuck")
    page = BoardClient(board).get("/")[1]
    assert f"{sick.worker_id} is in use by acme and failed 3 consecutive probes" in page


def test_without_signing_in_nothing_can_be_done(world: World, board: BoardServer) -> None:
    [idle] = world.warm(1)
    client = BoardClient(board)
    for path in (f"/act/workers/{idle}/drain", f"/act/workers/{idle}/retire", "/act/passes/reap/pause"):
        assert client.ask("GET", path).headers.get("location", "").startswith("/sign-in?next=")
        assert client.post(path, {"token": "x"}) == 303
    assert client.post("/sign-in", {"name": "alice", "password": "wrong"}) == 403
    assert client.cookie == ""
    assert world.state_of(idle) is State.IDLE
    assert not world.rows("passes")


def test_an_action_needs_a_confirmation_and_the_journal_names_its_actor(
    world: World, board: BoardServer
) -> None:
    [idle] = world.warm(1)
    client = BoardClient(board)
    client.sign_in()
    path = f"/act/workers/{idle}/drain"
    status, page = client.get(path)
    assert status == 200
    assert f'Drain <span class="mono">{idle}</span>?' in page
    assert world.state_of(idle) is State.IDLE
    assert client.post(path, {"token": client.token(path), "why": "too old"}) == 303
    assert world.state_of(idle) is State.DRAINING
    last = world.rows("journal")[-1]
    assert (last.who, last.reason, last.detail) == ("alice (board)", "drained", "too old")
    world.pass_time(DELETE_GRACE_S + 1)
    world.run_pass("reap")
    world.settle()
    assert world.state_of(idle) is State.RETIRED


def test_a_retirement_ends_a_claim_and_a_drain_does_not(world: World, board: BoardServer) -> None:
    world.warm(2)
    one, two = world.granted("acme"), world.granted("acme")
    client = BoardClient(board)
    client.sign_in("bob")
    for got, verb in ((one, "drain"), (two, "retire")):
        path = f"/act/workers/{got.worker_id}/{verb}"
        assert "acme is using it" in client.get(path)[1]
        assert client.post(path, {"token": client.token(path)}) == 303
    assert set(world.renew(one.claim_id, two.claim_id)["gone"]) == {two.claim_id}
    assert world.state_of(one.worker_id) is State.HOT


def test_a_pass_is_paused_and_resumed_by_name(world: World, board: BoardServer) -> None:
    client = BoardClient(board)
    client.sign_in()
    for verb, paused in (("pause", True), ("resume", False)):
        path = f"/act/passes/reap/{verb}"
        assert client.post(path, {"token": client.token(path)}) == 303
        [row] = world.rows("passes")
        assert (row.paused, row.paused_by) == (paused, "alice (board)" if paused else None)
    assert [d.what for d in world.rows("deeds")] == ["pass_paused", "pass_resumed"]
    assert {d.who for d in world.rows("deeds")} == {"alice (board)"}
    assert client.get("/act/passes/nothing/pause")[0] == 404


def test_a_form_from_another_origin_is_refused(world: World, board: BoardServer) -> None:
    [idle] = world.warm(1)
    alice, mallory = BoardClient(board), BoardClient(board)
    alice.sign_in()
    mallory.sign_in("mallory")
    path = f"/act/workers/{idle}/drain"
    theirs = mallory.token(path)
    assert alice.post(path, {}) == 403
    assert alice.post(path, {"token": ""}) == 403
    if theirs != alice.token(path):
        assert alice.post(path, {"token": theirs}) == 403
    assert alice.post(path, {"token": alice.token(path)}, Origin="https://elsewhere.test") == 403
    assert alice.post("/sign-in", {"name": "a", "password": PASSWORD}, Origin="https://elsewhere.test") == 403
    assert alice.post("/sign-out", {}) == 403
    assert world.state_of(idle) is State.IDLE
    assert alice.post("/sign-out", {"token": alice.token(path)}) == 303


def test_an_oversized_form_is_not_read_to_its_end(world: World, board: BoardServer) -> None:
    [idle] = world.warm(1)
    client = BoardClient(board)
    client.sign_in()
    path = f"/act/workers/{idle}/drain"
    answer = client.ask("POST", path, {"token": client.token(path), "why": "x" * 20_000})
    assert (answer.status, "too large" in answer.text) == (413, True)
    assert world.state_of(idle) is State.IDLE


def test_a_list_is_bounded(world: World, board: BoardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    world.warm(3)
    monkeypatch.setattr("pool.ops.board.pages.MOST_ROWS", 2)
    assert len(BoardClient(board).json("/api/get/workers?limit=100000")) == 2
    assert len(BoardClient(board).json("/api/get/workers?limit=1")) == 1


def test_a_password_in_a_header_allows_reading_only(store: Store) -> None:
    world = World(store)
    with BoardServer(world, host="0.0.0.0") as board:
        asked = {"Authorization": "Basic YWxpY2U6b3BlbiBzZXNhbWU="}
        assert BoardClient(board).get("/api/status", **asked)[0] == 200
        answer = BoardClient(board).ask("POST", "/sign-out", {}, **asked)
        assert (answer.status, answer.headers.get("location")) == (303, "/sign-in")


def test_every_response_has_its_headers_and_other_host_names_are_refused(
    world: World, board: BoardServer
) -> None:
    client = BoardClient(board)
    for path in ("/", "/api/status", "/static/board.js", "/nothing", "/healthz", "/sign-in"):
        answer = client.ask("GET", path)
        body = answer.text
        policy = answer.headers.get("content-security-policy", "")
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe-inline" not in policy
        assert answer.headers.get("x-content-type-options", "") == "nosniff"
        assert " style=" not in body or path.startswith("/static")
        assert "<script>" not in body
    assert client.get("/", Host="evil.test")[0] == 421
    client.sign_in()
    answer = client.ask("POST", "/sign-in", {"name": "alice", "password": PASSWORD, "next": "//evil.test/"})
    assert answer.headers.get("location", "") == "/"
    assert "HttpOnly" in answer.headers.get("set-cookie", "")
    assert "samesite=strict" in answer.headers.get("set-cookie", "").lower()


def test_off_loopback_reading_needs_the_password(store: Store) -> None:
    world = World(store)
    with BoardServer(world, host="0.0.0.0") as board:
        client = BoardClient(board)
        assert client.ask("GET", "/").headers.get("location", "") == "/sign-in"
        assert client.get("/api/status")[0] == 401
        assert client.get("/events")[0] == 401
        assert client.get("/healthz")[0] == 200
        assert client.get("/api/status", Authorization="Basic YWxpY2U6b3BlbiBzZXNhbWU=")[0] == 200
        assert client.get("/api/status", Authorization="Basic YWxpY2U6d3Jvbmc=")[0] == 401
        client.sign_in()
        assert client.get("/")[0] == 200


def test_names_from_outside_are_shown_as_text(world: World, board: BoardServer) -> None:
    world.warm(1)
    got = world.granted("acme")
    path = f"/act/workers/{got.worker_id}/drain"
    client = BoardClient(board)
    client.sign_in()
    client.post(path, {"token": client.token(path), "why": "<script>alert(1)</script>"})
    page = client.get(f"/workers/{got.worker_id}")[1]
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in client.get("/")[1]


class FeedListener:
    """One browser's stream of events."""

    def __init__(self, board: BoardServer) -> None:
        self.told: list[dict[str, Any]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", board.port, timeout=60)
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.request("GET", "/events")
        self._answer = self._connection.getresponse()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b"data: "):
                    self.told.append(json.loads(line[6:]))
        except (OSError, ValueError, AttributeError):
            return

    def close(self) -> None:
        """Closing a socket during a read ends only that read."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._answer.close()
        self._connection.close()


def test_many_browsers_share_one_read_with_a_fixed_number_of_statements(store: Store) -> None:
    world = World(store)
    many(store, 2000)
    statements: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    with BoardServer(world) as board:
        listeners = [FeedListener(board) for _ in range(5)]
        eventually(lambda: all(listener.told for listener in listeners), within_s=30)
        eventually(lambda: board.feed.readings >= 3, within_s=30)
        readings, asked = board.feed.readings, len(statements)
        eventually(lambda: board.feed.readings >= readings + 3, within_s=30)
        each = (len(statements) - asked) / (board.feed.readings - readings)
        for listener in listeners:
            listener.close()
        eventually(lambda: board.feed._listeners == 0, within_s=60)
    assert each < 40, statements[asked:]
    for listener in listeners:
        first = listener.told[0]
        assert len(first["cells"]["states"]) == 2000
        assert len(json.dumps(first, separators=(",", ":"))) < 200_000
        assert all("cells" not in later or "steps" not in later["cells"] for later in listener.told[1:])


def test_without_a_browser_nothing_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pool.ops.board.feed.WANTED_FOR_S", 0.0)
    monkeypatch.setattr("pool.ops.board.feed.PERIOD_S", 0.01)
    with BoardServer(World(store)) as board:
        BoardClient(board).json("/api/status")
        eventually(lambda: board.feed._woken.is_set() is False, within_s=30)
        before = board.feed.readings
        BoardClient(board).get("/healthz")
        assert board.feed.readings == before


def test_a_move_reaches_every_browser_as_one_cell(world: World, board: BoardServer) -> None:
    world.warm(3)
    first, second = FeedListener(board), FeedListener(board)
    eventually(lambda: first.told and second.told, within_s=30)
    got = world.granted("acme")

    def cells(listener: FeedListener) -> list[Any]:
        return [c for t in listener.told[1:] for c in t.get("cells", {}).get("set", [])]

    eventually(lambda: cells(first) and cells(second), within_s=30)
    [[place, *_]] = cells(first)
    assert board.feed.fleet.at(place).id == got.worker_id
    assert BoardClient(board).json(f"/fleet/{place}")["page"] == f"/workers/{got.worker_id}"
    first.close()
    second.close()


def test_an_unreachable_database_is_shown_and_the_board_continues(
    world: World, board: BoardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = FeedListener(board)
    eventually(lambda: listener.told, within_s=30)
    monkeypatch.setattr("pool.ops.board.feed.reporting.status", _raises)
    eventually(lambda: any("gone away" in t.get("trouble", "") for t in listener.told), within_s=30)
    monkeypatch.undo()
    eventually(lambda: "trouble" not in listener.told[-1], within_s=30)
    listener.close()


def _raises(*_: object) -> None:
    raise RuntimeError("gone away")


def test_concurrent_readers_share_one_read(world: World, board: BoardServer) -> None:
    world.warm(1)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: BoardClient(board).json("/api/status")["at"], range(24)))
    assert len(set(found)) < 12
