"""The lane: what callers send is taken in the worker's own loop, many messages at a time, and whatever has come together is decided
in one statement and one commit. It never waits for a batch to fill: while one is being decided, the next one gathers in Redis.

What is not of the common case goes to threads of its own and delays nobody. What is not even plain goes to Celery's consumer. Nothing
that arrives ends the lane; while Redis or the database is away it tries again until it is told to end.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import structlog
from celery.app.task import Context
from redis.exceptions import RedisError

from pool import answering, batching, config
from pool.after import After
from pool.backoff import Backoff
from pool.batching import Asking, Decided
from pool.contract import RefusedAnswer, Release, Renew
from pool.errors import BrokenPromise, InvalidInput, Transient
from pool.records import ReplyTo
from pool.states import Reason
from pool.store.line import Line
from tasks.calls import Call, carried_out, parsed, patiently, told
from tasks.desk import Desk
from tasks.letters import Letter, read
from tasks.mailbox import Mailbox, Post, Taken
from tasks.proving import ForeignOrg, Proven, Unproven
from tasks.replies import Answered

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 100
# So many may be on their way through the general path; beyond that messages stay in Redis, where other workers can take them.
MOST_OPEN = 1000
# A turn takes a moment, and with the database away as long as a call to it may; a lane without one for this long is stuck.
STUCK_S = 60.0
_JOIN_S = 30.0
_AWAY = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=1_000_000)


class Lane:
    """One thread that takes, decides and answers; others for what takes longer."""

    def __init__(self, app: WarmpoolApp) -> None:
        self._app = app
        self._deps = app.deps
        self._mailbox = Mailbox(config.broker_url(app.settings), app=app)
        self._line = Line(app.deps.store) if app.deps.store.is_postgres else None
        self._threads = ThreadPoolExecutor(app.threads, thread_name_prefix="at-length")
        self._desk = Desk(app, self._threads)
        self._open = 0
        self._fewer = threading.Condition()
        self._unposted: list[Post] = []
        self._unread: list[bytes] = []
        self._unkept: list[tuple[Letter, Proven]] = []
        self._turned_at = self._deps.clock.monotonic()
        self._thread = app.watched.make("lane", self._run, stop=app.stopping)

    def start(self) -> None:
        self._thread.start()

    def is_well(self) -> bool:
        """Whether it still turns."""
        return self._thread.is_alive() and self._deps.clock.monotonic() - self._turned_at < STUCK_S

    def close(self) -> None:
        """Once the app is stopping: what is in hand is finished or handed back."""
        self._thread.join(_JOIN_S)
        self._threads.shutdown(wait=True)
        if self._line is not None:
            self._line.close()
        self._mailbox.close()

    def _run(self) -> None:
        pauses = _AWAY.pauses()
        while not self._app.stopping.is_set():
            self._turned_at = self._deps.clock.monotonic()
            try:
                self._turn()
                pauses = _AWAY.pauses()
            except (RedisError, OSError, Transient) as exc:
                log.warning("lane_interrupted", cause=str(exc))
                self._deps.clock.wait(self._app.stopping, next(pauses))
            except Exception:  # one turn's trouble, whatever it is, must not be the end of the lane
                log.exception("lane_stumbled")
                self._deps.clock.wait(self._app.stopping, next(pauses))
        with contextlib.suppress(RedisError, OSError):
            if self._unkept:
                self._mailbox.hand_back([Taken(letter=letter) for letter, _ in self._unkept])
            self._post([])

    def _turn(self) -> None:
        if self._unposted:
            self._post([])
        self._wait_for_room()
        if not self._unkept:
            self._take()
        if self._unkept:
            self._serve(self._kept())
        if self._unread:
            self._mailbox.forward(self._unread)
            self._unread.clear()

    def _take(self) -> None:
        refused: list[Post] = []
        came = self._mailbox.take(MOST_AT_ONCE, self._desk.queues())
        for raw in came.messages:
            letter = read(raw)
            if letter is None:
                self._unread.append(raw)
                continue
            proven = self._desk.proven(letter, came.now_s)
            if isinstance(proven, Proven):
                self._unkept.append((letter, proven))
            else:
                refused += self._desk.refused(Taken(letter=letter), proven)
        if refused:
            self._post(refused)

    def _kept(self) -> list[Taken]:
        """Those that may be served. If the broker can not be asked whether one of them was served before, they are asked for again in a later
        turn; with requests that are not signed there is nothing to ask."""
        letters = self._unkept
        try:
            taken, said = self._mailbox.keep(letters)
        except (RedisError, OSError) as exc:
            if self._app.prover.is_on:
                raise
            log.warning("letters_not_kept", count=len(letters), cause=str(exc))
            taken, said = [Taken(letter=letter) for letter, _ in letters], {}
        self._unkept = []
        fresh, refused = self._desk.unspent(taken, said)
        if refused:
            self._post(refused)
        return fresh

    def _serve(self, taken: Sequence[Taken]) -> None:
        """Answer what can be answered at once; the rest goes to the threads."""
        posts: list[Post] = []
        asked: list[tuple[Taken, Call]] = []
        for each in taken:
            call = self._parsed(each)
            if isinstance(call, Unproven):
                posts += self._desk.refused(each, call)
            elif isinstance(call, RefusedAnswer):
                posts.append(Post(taken=each, answer=Answered(call.as_dict())))
            else:
                asked.append((each, call))
        decided, after = self._decided([call for _, call in asked])
        for (each, call), what in zip(asked, decided, strict=True):
            if what is None:
                self._at_length(each, call)
            else:
                posts.append(Post(taken=each, answer=told(self._app, what)))
        try:
            self._post(posts)
        finally:
            after.send(self._deps)
            if after.freed:
                self._threads.submit(answering.carry_out, self._deps, After(freed=after.freed))

    def _parsed(self, taken: Taken) -> Call | RefusedAnswer | Unproven:
        letter, proven = taken.letter, taken.proven
        reply = ReplyTo(task_id=letter.task_id, address=letter.address)
        try:
            most = self._app.settings.pool.hot_idle_ttl_max_s
            return parsed(letter.task, letter.args, letter.kwargs, reply, ttl_max_s=most, org=proven.org)
        except ForeignOrg as exc:
            return self._app.prover.foreign(exc, letter.asked, letter.headers, proven)
        except InvalidInput as exc:
            return RefusedAnswer(reason=Reason.INVALID, detail=exc.detail)

    def _decided(self, calls: Sequence[Call]) -> tuple[list[Decided], After]:
        together = [call for call in calls if _is_batched(call)]
        try:
            found, after = batching.serve(self._deps, together, self._line)
        except (Transient, BrokenPromise) as exc:
            log.warning("batch_left_to_the_general_path", calls=len(together), cause=str(exc))
            return [None] * len(calls), After()
        except Exception:  # a bug of the batch is no reason to leave callers without an answer
            log.exception("batch_failed", calls=len(together))
            return [None] * len(calls), After()
        places = iter(found)
        return [next(places) if _is_batched(call) else None for call in calls], after

    def _at_length(self, taken: Taken, call: Call) -> None:
        with self._fewer:
            self._open += 1
        self._threads.submit(self._carry_out, taken, call)

    def _carry_out(self, taken: Taken, call: Call) -> None:
        """One call by the general path. Whatever it raises is told to its caller and to nobody else."""
        try:
            if self._app.stopping.is_set():
                self._mailbox.hand_back([taken])
            else:
                answer = patiently(self._app, partial(carried_out, self._app, call))
                self._post([Post(taken=taken, answer=answer)])
        except (RedisError, OSError) as exc:
            log.warning("answer_not_posted", task_id=taken.letter.task_id, cause=str(exc))
        except Exception as exc:  # noqa: BLE001 - as Celery does for a task
            self._fail(taken, exc)
        finally:
            with self._fewer:
                self._open -= 1
                self._fewer.notify()

    def _fail(self, taken: Taken, exc: Exception) -> None:
        """As Celery would tell it; a process that is about to end leaves the call to another."""
        letter = taken.letter
        log.error(
            "call_failed", task=letter.task, task_id=letter.task_id, cause=f"{type(exc).__name__}: {exc}"
        )
        try:
            if self._app.stopping.is_set() and isinstance(exc, Transient):
                self._mailbox.hand_back([taken])
                return
            if letter.wants_result:
                self._app.backend.store_result(
                    letter.task_id, exc, "FAILURE", request=Context(reply_to=letter.address)
                )
            self._mailbox.post([Post(taken=taken, answer=None)])
        except Exception as also:  # noqa: BLE001 - then it is delivered again
            log.warning("failure_not_told", task_id=letter.task_id, cause=str(also))
        self._app.pool_broker.tell_failed(letter, exc)

    def _post(self, posts: list[Post]) -> None:
        """What can not be posted now is posted by a later turn; until then it is not marked as delivered."""
        with self._fewer:
            posts, self._unposted = self._unposted + posts, []
        if not posts:
            return
        try:
            self._mailbox.post(posts)
        except (RedisError, OSError):
            with self._fewer:
                self._unposted = posts + self._unposted
            raise
        for post in posts:
            if post.answer is not None and post.answer.pk:
                self._app.delivered.add(post.answer.pk)
        self._app.pool_broker.tell_served(posts)

    def _wait_for_room(self) -> None:
        with self._fewer:
            while self._open >= MOST_OPEN and not self._app.stopping.is_set():
                self._fewer.wait(0.2)
                self._turned_at = self._deps.clock.monotonic()


def _is_batched(call: Call) -> TypeGuard[Asking | Release | Renew]:
    return isinstance(call, Asking | Release | Renew) and not batching.holds_up(call)
