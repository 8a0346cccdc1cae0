"""One process's use of a pool: its connections and its two threads, the reader and the renewer.

Who reads answers, for himself and for all others, is whoever asks while nobody reads: no thread has to wake another then. If he leaves while
others still wait, the reader goes on in his place.

A session does not outlive a fork; the pool makes another. No thread runs before the first question. A session whose
pool nobody refers to any more is `orphaned` and closes itself: the garbage collector may run inside any lock of ours, so
it sets no more than that flag.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pool.client.asking import Ask, GiveUp, Pace, Send, Wait
from pool.client.calls import PendingCall
from pool.client.core import Core, log
from pool.client.credentials import KeySource, Signer
from pool.client.errors import BrokerDown, PoolClosed
from pool.client.identity import Identity
from pool.client.link import Link
from pool.core.clock import Clock, SystemClock
from pool.core.errors import PoolError

T = TypeVar("T")
# How long `close` waits for its threads; they are daemons and hold nothing up after that.
JOIN_S = 2.0
# With nothing held there is nothing to renew; the first claim wakes the renewer.
NOTHING_HELD_S = 3600.0
# How often the reader looks whether it is needed though nobody said so.
LOOK_ROUND_S = 5.0


class Session:
    """Carries out what `Core` decides, with threads."""

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

    def ask(self, call: PendingCall, take: Callable[[object], T]) -> T:
        """Send, wait, and hand the result to `take`. Whoever leaves before that leaves nothing behind."""
        self._start()
        answered = threading.Event()
        ask = self.core.ask(call, answered, self.now())
        try:
            taken = take(self._converse(ask, answered))
        except BaseException:
            self.tell(self.core.abandon(ask, self.now()))
            raise
        else:
            self.core.finish(ask)
            return taken
        finally:
            self._resign(ask)

    def tell(self, told: list[PendingCall]) -> None:
        """Send without waiting for answers, once, at best."""
        if not told:
            return
        try:
            self._learn_time()
            self._link.publish(*self.core.notes(told))
        except BrokerDown as error:
            log.warning("not_told tasks=%s error=%s", sorted({call.task for call in told}), error)

    def close(self) -> None:
        """Stop the threads; release what is still held, at best."""
        self._stop.set()
        self._sooner.set()
        self._reader_wanted.set()
        self.tell(self.core.close())
        with self._starting:
            threads = list(self._threads)
        if threads:
            with contextlib.suppress(BrokerDown):
                self._link.wake_reader()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(JOIN_S)
        if not any(thread.is_alive() for thread in threads) and self._lead(self):
            # For good: nobody reads any more. Whoever still reads closes it when he leaves.
            self._link.close()

    def _converse(self, ask: Ask, answered: threading.Event) -> object:
        leads = self._lead(ask)
        while ask.answer is None:
            match ask.step(self.now()):
                case Send():
                    self._send(ask, self._link.publish_and_listen if leads else self._link.publish)
                case Wait(seconds) if leads:
                    self._listen(ask, answered, seconds)
                case Wait(seconds):
                    self._clock.wait(answered, seconds)
                case GiveUp(error):
                    raise error
        return ask.answer.value()

    def _send(self, ask: Ask, publish: Callable[[str], None]) -> None:
        try:
            self._learn_time()
        except BrokerDown as error:
            ask.held_up(self.now(), error)
            return
        try:
            publish(self.core.sending(ask))
        except BrokerDown as error:
            ask.unsent(self.now(), error)
        else:
            ask.sent(self.now())

    def _learn_time(self) -> None:
        signer = self.core.signer
        if signer is not None and signer.is_due():
            signer.learn(self._link.time_s())

    def _listen(self, ask: Ask, answered: threading.Event, seconds: float) -> None:
        """Take answers until our own is among them."""
        until = self.now() + seconds
        while ask.answer is None and not ask.closed and (left := until - self.now()) > 0:
            try:
                raws = self._link.answers(left)
            except BrokerDown as error:
                log.warning("answers_unreachable error=%s", error)
                self._clock.wait(answered, min(left, self.core.pace.reconnect.first_s))
            else:
                self._pass_on(raws)

    def _lead(self, who: object) -> bool:
        """Whether this one reads: the first who asks while nobody does."""
        with self._leading:
            if self._leader is None:
                self._leader = who
            return self._leader is who

    def _resign(self, who: object) -> None:
        """Whoever is still to be answered is not forgotten: he asked before we looked, or he finds that nobody reads."""
        with self._leading:
            if self._leader is not who:
                return
            if self._stop.is_set() and isinstance(who, Ask):
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
        """Run a loop until the session is closed: one that raises is run again, and the claims that are held stay renewed."""
        pauses = self.core.pace.reconnect.pauses()
        while not self._stop.is_set():
            try:
                loop()
            except BaseException:  # noqa: BLE001 - whatever ends it, it is still wanted
                log.exception("thread_restarted thread=%s", name)
                self._clock.wait(self._stop, next(pauses, self.core.pace.reconnect.limit_s))

    def _read(self) -> None:
        while not self._stop.is_set():
            if self.orphaned:
                self.close()
                return
            self._clock.wait(self._reader_wanted, LOOK_ROUND_S)
            # Before we try: whoever reads now wants us again when he leaves.
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
            except BrokerDown as error:
                log.warning("answers_unreachable error=%s", error)
                self._clock.wait(self._stop, next(pauses, self.core.pace.reconnect.limit_s))
                continue
            pauses = self.core.pace.reconnect.pauses()
            self._pass_on(raws)

    def _pass_on(self, raws: list[bytes]) -> None:
        """Wake everybody, and only then tell what is to be told."""
        self.tell([call for raw in raws for call in self.core.answered(raw, self.now())])

    def _forget_leader(self) -> None:
        """One that was interrupted even in leaving did not resign."""
        with self._leading:
            if isinstance(self._leader, Ask) and not self.core.is_open(self._leader):
                self._leader = None

    def _renew(self) -> None:
        holdings = self.core.holdings
        while not self._stop.is_set():
            self._sooner.clear()
            pause = holdings.due_in(self.now())
            if pause is None or pause > 0:
                self._clock.wait(self._sooner, NOTHING_HELD_S if pause is None else pause)
                continue
            try:
                for call in holdings.renewals():
                    self.ask(call, self.core.renewed)
            except PoolError as error:
                if not self._stop.is_set():
                    log.warning("renewal_unanswered error=%s", error)
                holdings.retry(self.now())
            else:
                holdings.rest(self.now())
