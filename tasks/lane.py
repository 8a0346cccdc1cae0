"""The lane: what callers send is taken in the worker's own loop, many messages at a time, and whatever has come together is decided
in one statement and one commit. It never waits for a batch to fill: while one is being decided, the next one gathers in Redis.

What is not of the common case goes to threads that orgs share, and delays no other org. Nothing that arrives ends the lane or costs another
caller its answer; while Redis or the database is away it tries again until the process stops.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

import structlog
from celery.exceptions import TaskRevokedError
from redis.exceptions import RedisError

from pool import answering, batching, config
from pool.after import After
from pool.backoff import Backoff
from pool.batching import Asking, Decided
from pool.contract import Cancel, RefusedAnswer, Release, Renew
from pool.errors import BrokenPromise, InvalidInput, Transient
from pool.records import ReplyTo
from pool.states import Reason
from pool.store.line import Line
from tasks.calls import Call, Canary, carried_out, parsed, patiently, told
from tasks.delaying import MOST_DELAYED_BYTES, MOST_S, Delayed
from tasks.desk import Desk
from tasks.letters import Unread, Unreadable, read
from tasks.mailbox import Failure, Mailbox, Post, Taken
from tasks.proving import ForeignOrg, Unproven
from tasks.replies import Answered
from tasks.sharing import SharedThreads

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

log = structlog.get_logger(__name__)

MOST_AT_ONCE = 100
# Calls that may be on their way through the general path; beyond that messages stay in Redis, where other workers can take them. No org may have
# more than its part of them: its further calls are answered as during an outage, so that its callers ask again later.
MOST_OPEN = 10_000
MOST_OPEN_OF_AN_ORG = 1000
MOST_OPEN_BYTES_OF_AN_ORG = 8_000_000
# A turn takes a moment, and with the database away as long as a call to it may; a lane without one for this long is stuck.
STUCK_S = 60.0
_JOIN_S = 30.0
_AWAY = Backoff(first_s=0.05, factor=2.0, limit_s=1.0, tries=1_000_000)


class Lane:
    """One thread that takes, decides and answers; others for what takes longer."""

    def __init__(self, app: WarmpoolApp) -> None:
        self._app = app
        self._deps = app.deps
        self._limit_bytes = app.settings.pool.message_limit_bytes
        self._mailbox = Mailbox(config.broker_url(app.settings), app=app, limit_bytes=self._limit_bytes)
        self._line = Line(app.deps.store) if app.deps.store.is_postgres else None
        self._threads = SharedThreads(
            app.threads, most_in_hand=MOST_OPEN_OF_AN_ORG, most_bytes=MOST_OPEN_BYTES_OF_AN_ORG
        )
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="aside")
        self._desk = Desk(app, self._aside)
        self._delayed = Delayed(app.deps.clock)
        self._now_s = 0.0
        self._open = 0
        self._fewer = threading.Condition()
        self._unposted: list[Post] = []
        self._unkept: list[Taken] = []
        self._suspects: list[Taken] = []
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
        self._threads.shutdown()
        self._aside.shutdown(wait=True)
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
                self._one_by_one()
                self._deps.clock.wait(self._app.stopping, next(pauses))
        with contextlib.suppress(RedisError, OSError):
            if back := [*self._unkept, *self._suspects, *self._delayed.everything()]:
                self._mailbox.hand_back(back)
        with contextlib.suppress(RedisError, OSError):
            self._post([])

    def _one_by_one(self) -> None:
        """Those that were in hand when a turn failed are tried one at a time; one that fails by itself is dropped."""
        if len(self._unkept) == 1:
            self._app.dropped.add(Unread.ERROR)
        else:
            self._suspects += self._unkept
        self._unkept = []

    def _turn(self) -> None:
        if self._unposted:
            self._post([])
        self._wait_for_room()
        if not self._unkept and self._suspects:
            self._unkept.append(self._suspects.pop())
        elif not self._unkept:
            self._take()
        posts: list[Post] = []
        fresh = self._in_time(self._kept(posts), posts) if self._unkept else []
        fresh += self._in_time(self._delayed.due(), posts)
        if fresh or posts:
            self._serve(fresh, posts)
        self._app.dropped.flush()

    def _take(self) -> None:
        refused: list[Post] = []
        came = self._mailbox.take(MOST_AT_ONCE, self._desk.queues())
        self._now_s = came.now_s
        self._app.dropped.add(Unread.TOO_LARGE, came.too_large)
        for raw in came.messages:
            try:
                refused += self._admit(raw)
            except Exception:  # one message's trouble, whatever it is, is its own
                log.exception("message_not_read")
                self._app.dropped.add(Unread.ERROR)
        if refused:
            self._post(refused)

    def _admit(self, raw: bytes) -> list[Post]:
        """Check one message. It is dropped, refused with what this returns, or is to be served."""
        letter = read(raw, self._limit_bytes)
        if isinstance(letter, Unreadable):
            self._app.dropped.add(letter.why)
            return []
        if self._desk.is_forged(letter):
            self._app.dropped.add(Unread.NOT_INTERNAL)
            return []
        proven = self._desk.proven(letter, self._now_s)
        if isinstance(proven, Unproven):
            return self._desk.refused(Taken(letter=letter), proven)
        if letter.refusal:
            return [_invalid(Taken(letter=letter, proven=proven), letter.refusal)]
        self._unkept.append(self._mailbox.tagged(letter, proven))
        return []

    def _kept(self, posts: list[Post]) -> list[Taken]:
        """Those that may be served. If the broker can not be asked whether one of them was served before, they are asked for again in a later
        turn; with requests that are not signed there is nothing to ask."""
        said: dict[str, str] = {}
        try:
            said = self._mailbox.keep(self._unkept)
        except (RedisError, OSError) as exc:
            if self._app.prover.is_on:
                raise
            log.warning("letters_not_kept", count=len(self._unkept), cause=str(exc))
        taken, self._unkept = self._unkept, []
        fresh, refused = self._desk.unspent(taken, said)
        posts += refused
        return fresh

    def _in_time(self, taken: list[Taken], posts: list[Post]) -> list[Taken]:
        """Those that are to be carried out now. The others wait for their time or, past it, are given up, as Celery does; both are by this host's
        clock."""
        if not any(t.letter.eta or t.letter.expires for t in taken):
            return taken
        now, fresh = self._app.now(), []
        for each in taken:
            letter = each.letter
            if letter.expires is not None and letter.expires <= now:
                posts.append(Post(taken=each, failure=Failure("REVOKED", TaskRevokedError("expired"))))
            elif letter.eta is None or letter.eta <= now:
                fresh.append(each)
            elif objection := self._delay(each, (letter.eta - now).total_seconds()):
                posts.append(_invalid(each, objection))
        return fresh

    def _delay(self, taken: Taken, delay_s: float) -> str:
        """Keep it until its time; why not, if it cannot be kept."""
        if len(taken.letter.raw) > MOST_DELAYED_BYTES:
            return f"eta: a message of more than {MOST_DELAYED_BYTES} bytes is not kept; send the task when it is due"
        if delay_s > MOST_S:
            return (
                f"eta: {delay_s:.0f} s ahead is above the maximum of {MOST_S}; send the task when it is due"
            )
        if not self._delayed.add(taken, delay_s):
            return "eta: too many delayed calls are in hand; send the task when it is due"
        return ""

    def _serve(self, taken: Sequence[Taken], posts: list[Post]) -> None:
        """Answer what can be answered at once; the rest goes to the threads."""
        asked: list[tuple[Taken, Call]] = []
        for each in taken:
            try:
                call = self._parsed(each)
            except Exception as exc:  # noqa: BLE001 - one call's trouble is its own
                posts.append(self._failed(each, exc))
                continue
            if isinstance(call, Unproven):
                posts += self._desk.refused(each, call)
            elif isinstance(call, RefusedAnswer):
                posts.append(Post(taken=each, answer=Answered(call.as_dict())))
            else:
                asked.append((each, call))
        decided, after = self._decided([call for _, call in asked])
        for (each, call), what in zip(asked, decided, strict=True):
            if what is not None:
                posts.append(Post(taken=each, answer=told(self._app, what)))
            elif not self._at_length(each, call):
                posts.append(
                    self._failed(each, Transient("this org has too many calls in hand; ask again later"))
                )
        try:
            self._post(posts)
        finally:
            after.send(self._deps)
            if after.freed:
                self._aside.submit(self._match, After(freed=after.freed))

    def _match(self, after: After) -> None:
        try:
            answering.carry_out(self._deps, after)
        except Exception:  # the pass matches what is left
            log.exception("matching_left_to_the_pass")

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

    def _at_length(self, taken: Taken, call: Call) -> bool:
        """Have the threads carry it out; False if its org has as many calls in hand as it may have."""
        with self._fewer:
            self._open += 1
        carry_out = partial(self._carry_out, taken, call)
        if isinstance(call, Canary):
            self._aside.submit(carry_out)
            return True
        if self._threads.submit(_whose(taken, call), carry_out, len(taken.letter.raw)):
            return True
        self._closed_one()
        return False

    def _closed_one(self) -> None:
        with self._fewer:
            self._open -= 1
            self._fewer.notify()

    def _carry_out(self, taken: Taken, call: Call) -> None:
        """One call by the general path. Whatever it raises is told to its caller and to nobody else."""
        try:
            if self._app.stopping.is_set():
                self._mailbox.hand_back([taken])
                return
            try:
                answer = patiently(self._app, partial(carried_out, self._app, call))
                post = Post(taken=taken, answer=answer)
            except Exception as exc:  # noqa: BLE001 - as Celery does for a task
                if self._app.stopping.is_set() and isinstance(exc, Transient):
                    self._mailbox.hand_back([taken])  # another process carries it out
                    return
                post = self._failed(taken, exc)
            self._post([post])
        except (RedisError, OSError) as exc:
            log.warning("answer_not_posted", task_id=taken.letter.task_id, cause=str(exc))
        finally:
            self._closed_one()

    def _failed(self, taken: Taken, exc: Exception) -> Post:
        """What Celery stores for a task that raised."""
        letter = taken.letter
        log.error(
            "call_failed", task=letter.task, task_id=letter.task_id, cause=f"{type(exc).__name__}: {exc}"
        )
        return Post(taken=taken, failure=Failure("FAILURE", exc))

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


def _invalid(taken: Taken, objection: str) -> Post:
    answer = RefusedAnswer(reason=Reason.INVALID, detail=objection)
    return Post(taken=taken, answer=Answered(answer.as_dict()))


def _whose(taken: Taken, call: Call) -> str:
    """The org that a call is of, as far as is known without asking the table."""
    if taken.proven.org is not None:
        return taken.proven.org
    match call:
        case Asking(asked=asked):
            return asked.org
        case Cancel(org=org):
            return org
        case Release(claim_id=claim_id):
            return claim_id
    return taken.letter.task_id


def _is_batched(call: Call) -> TypeGuard[Asking | Release | Renew]:
    return isinstance(call, Asking | Release | Renew) and not batching.holds_up(call)
