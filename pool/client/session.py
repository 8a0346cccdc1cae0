"""The session of one process: its connections and its two threads, the reader and the renewer.

A caller that starts to wait while no thread reads becomes the leader: it reads the answers for
itself and for all other callers. So no thread has to wake another one. If the leader leaves while
others wait, the reader thread takes over.

A session does not survive a fork; the pool creates a new one. No thread runs before the first call.
A session whose pool has been garbage-collected is `orphaned` and closes itself. The garbage
collector may run while one of our locks is held, so it only sets that flag.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from pool.client.calls import PendingCall
from pool.client.core import Core, log
from pool.client.credentials import KeySource, Signer
from pool.client.errors import LINK_ERRORS, PoolClosed
from pool.client.identity import Identity
from pool.client.link import Link
from pool.client.open_call import GiveUp, OpenCall, Pace, Send, Wait
from pool.core.clock import Clock, SystemClock
from pool.core.errors import PoolError

T = TypeVar("T")
# How long `close` waits for its threads. They are daemons and do not delay the exit of the process.
JOIN_S = 2.0
# How long the renewer waits while no claim is held. The first claim wakes it.
NOTHING_HELD_S = 3600.0
# Interval at which the reader checks whether it is needed, even if it was not woken.
LOOK_ROUND_S = 5.0


class Session:
    """Execute what `Core` decides, with threads."""

    def __init__(self, url: str, identity: Identity, source: KeySource | None = None) -> None:
        self._sooner = threading.Event()
        self._stop = threading.Event()
        self._clock: Clock = SystemClock()
        self._link = Link(url, identity)
        self._threads: list[threading.Thread] = []
        self.orphaned = False
        self._starting = threading.Lock()
        self._leading = threading.Lock()
        self._leader: object = None
        self._reader_wanted = threading.Event()
        signer = None if source is None else Signer(source, self._clock)
        self.core = Core(identity, Pace(), sooner=self._sooner, signer=signer)

    def now(self) -> float:
        return self._clock.monotonic()

    def call(self, call: PendingCall, take: Callable[[object], T]) -> T:
        """Send a call, wait for the answer and return `take(result)`.

        If the caller leaves before that, its request is cancelled, and a claim that was granted is
        released.
        """
        self._start()
        answered = threading.Event()
        open_call = self.core.open(call, answered, self.now())
        try:
            taken = take(self._answer_to(open_call, answered))
        except BaseException:
            self.notify(self.core.abandon(open_call, self.now()))
            raise
        else:
            self.core.finish(open_call)
            return taken
        finally:
            self._resign(open_call)

    def call_all(self, pending: Sequence[PendingCall], take: Callable[[object], T]) -> list[T]:
        """Send calls in one command, wait for all answers and return `take(result)` of each.

        If one fails, all are undone as by `call`.
        """
        self._start()
        opened: list[tuple[OpenCall, threading.Event]] = []
        try:
            for call in pending:
                answered = threading.Event()
                opened.append((self.core.open(call, answered, self.now()), answered))
            self._send([open_call for open_call, _ in opened], self._link.publish)
            taken = [take(self._led(open_call, answered)) for open_call, answered in opened]
        except BaseException:
            self.notify([undo for each, _ in opened for undo in self.core.abandon(each, self.now())])
            raise
        for open_call, _ in opened:
            self.core.finish(open_call)
        return taken

    def notify(self, unawaited: list[PendingCall]) -> None:
        """Send calls once, without waiting for the answers. Failures are only logged."""
        if not unawaited:
            return
        try:
            self._learn_time()
            self._link.publish(*self.core.notifications(unawaited))
        except LINK_ERRORS as error:
            log.info("messages_unsent tasks=%s error=%s", sorted({call.task for call in unawaited}), error)

    def close(self) -> None:
        """Stop the threads. Try to release the claims still held."""
        self._stop.set()
        self._sooner.set()
        self._reader_wanted.set()
        self.notify(self.core.close())
        with self._starting:
            threads = list(self._threads)
        if threads:
            with contextlib.suppress(*LINK_ERRORS):
                self._link.wake_reader()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)
        if not any(thread.is_alive() for thread in threads) and self._lead(self):
            # The lead is never given back, so no thread reads any more. If a caller still leads, it
            # closes the link when it leaves.
            self._link.close()

    def _answer_to(self, open_call: OpenCall, answered: threading.Event) -> object:
        leads = self._lead(open_call)
        while open_call.answer is None:
            match open_call.step(self.now()):
                case Send():
                    self._send([open_call], self._link.publish_and_listen if leads else self._link.publish)
                case Wait(seconds) if leads:
                    self._listen(open_call, answered, seconds)
                case Wait(seconds):
                    self._clock.wait(answered, seconds)
                case GiveUp(error):
                    raise error
        return open_call.answer.value()

    def _led(self, open_call: OpenCall, answered: threading.Event) -> object:
        """Return the answer. The caller may lead until it has it."""
        try:
            return self._answer_to(open_call, answered)
        finally:
            self._resign(open_call)

    def _send(self, together: list[OpenCall], publish: Callable[..., None]) -> None:
        try:
            self._learn_time()
        except LINK_ERRORS as error:
            for open_call in together:
                open_call.held_up(self.now(), error)
            return
        try:
            publish(*[self.core.sending(open_call) for open_call in together])
        except LINK_ERRORS as error:
            for open_call in together:
                open_call.unsent(self.now(), error)
        else:
            for open_call in together:
                open_call.sent(self.now())

    def _learn_time(self) -> None:
        signer = self.core.signer
        if signer is not None and signer.is_due():
            signer.learn(self._link.time_s())

    def _listen(self, open_call: OpenCall, answered: threading.Event, seconds: float) -> None:
        """Read answers until the own one has arrived."""
        until = self.now() + seconds
        while open_call.answer is None and not open_call.is_over and (left := until - self.now()) > 0:
            try:
                raws = self._link.answers(left)
            except LINK_ERRORS as error:
                self.core.unreadable(error)
                self._clock.wait(answered, min(left, self.core.pace.reconnect.first_s))
            else:
                self._pass_on(raws)

    def _lead(self, who: object) -> bool:
        """Return whether `who` is the leader. It becomes the leader if there is none."""
        with self._leading:
            if self._leader is None:
                self._leader = who
            return self._leader is who

    def _resign(self, who: object) -> None:
        """Give up the lead. If other callers still wait, wake the reader thread.

        No waiting caller is missed: it either started before the check below, or it becomes the
        leader itself.
        """
        with self._leading:
            if self._leader is not who:
                return
            if self._stop.is_set() and isinstance(who, OpenCall):
                self._link.close()
                return
            self._leader = None
        if self.core.expects_answers(self.now()):
            self._reader_wanted.set()

    def _start(self) -> None:
        if self._threads:
            return
        with self._starting:
            if self._threads:
                return
            if self._stop.is_set():
                raise PoolClosed
            for loop in (self._read, self._renew):
                name = f"warmpool-client{loop.__name__}"
                thread = threading.Thread(target=partial(self._keep, loop, name), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def _keep(self, loop: Callable[[], None], name: str) -> None:
        """Run a loop until the session is closed. If it raises, start it again, so that held claims
        stay renewed.
        """
        pauses = self.core.pace.reconnect.pauses()
        while not self._stop.is_set():
            try:
                loop()
            except BaseException:  # noqa: BLE001 - the session needs it after any error
                log.exception("thread_restarted thread=%s", name)
                self._clock.wait(self._stop, next(pauses, self.core.pace.reconnect.limit_s))

    def _read(self) -> None:
        while not self._stop.is_set():
            if self.orphaned:
                self.close()
                return
            self._clock.wait(self._reader_wanted, LOOK_ROUND_S)
            # Clear it first: a caller that leads now sets it again when it leaves.
            self._reader_wanted.clear()
            self._forget_leader()
            if self._lead(self):
                try:
                    self._read_on()
                finally:
                    self._resign(self)

    def _read_on(self) -> None:
        pauses = self.core.pace.reconnect.pauses()
        while not (self._stop.is_set() or self.orphaned) and self.core.expects_answers(self.now()):
            try:
                raws = self._link.answers(many=True)
            except LINK_ERRORS as error:
                self.core.unreadable(error)
                self._clock.wait(self._stop, next(pauses, self.core.pace.reconnect.limit_s))
                continue
            pauses = self.core.pace.reconnect.pauses()
            self._pass_on(raws)

    def _pass_on(self, raws: list[bytes]) -> None:
        """Give the answers to their callers first, then send the releases."""
        self.notify([call for raw in raws for call in self.core.answered(raw, self.now())])

    def _forget_leader(self) -> None:
        """Remove a leader that was interrupted before it could resign."""
        with self._leading:
            if isinstance(self._leader, OpenCall) and not self.core.is_open(self._leader):
                self._leader = None

    def _renew(self) -> None:
        leases = self.core.leases
        while not self._stop.is_set():
            self._sooner.clear()
            pause = leases.due_in(self.now())
            if pause is None or pause > 0:
                self._clock.wait(self._sooner, NOTHING_HELD_S if pause is None else pause)
                continue
            try:
                for call in leases.renewals():
                    self.call(call, self.core.renewed)
            except PoolError as error:
                # An outage has its own line.
                if not (self._stop.is_set() or isinstance(error, LINK_ERRORS)):
                    log.warning("renewal_unanswered error=%s", error)
                leases.retry(self.now())
            else:
                leases.rest(self.now())
