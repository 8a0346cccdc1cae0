"""The lane's desk: who of those that have written may be served. Which queues they may write to, whether they are who they say, and whether the same
letter was served before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING

from pool.signing import INTERNAL_HEADER, queue_of
from tasks.letters import CANARY, Letter
from tasks.mailbox import NOT_ASKED, Post, Taken
from tasks.options import INTERNAL_TASKS, LANE
from tasks.proving import OPEN, Proven, Unproven
from tasks.replies import Answered
from tasks.tenants import FRESH_S

if TYPE_CHECKING:
    from tasks.app import WarmpoolApp

# Refusals a second that are answered, of requests that are not believed.
MOST_TOLD_A_SECOND = 100


class Desk:
    """Used by the lane's own thread only; what it knows of orgs is read by another."""

    def __init__(self, app: WarmpoolApp, threads: Executor) -> None:
        self._app = app
        self._threads = threads
        self._per_org = app.settings.pool.queue_per_org
        self._reading: Future[None] | None = None
        self._telling_since, self._told = 0.0, 0

    def queues(self) -> list[str]:
        """What is to be read now: the common queue, and with a queue for each org all of theirs. `Transient` if the orgs were never read and can not be."""
        if not self._app.prover.is_on:
            return [LANE]
        self._keep_up()
        return [LANE, *map(queue_of, self._app.tenants.names)] if self._per_org else [LANE]

    def proven(self, letter: Letter, now_s: float) -> Proven | Unproven:
        prover = self._app.prover
        if not prover.is_on or letter.task == CANARY:
            return NOT_ASKED
        return prover.prove(letter.asked, letter.headers, now_s)

    def is_forged(self, letter: Letter) -> bool:
        """Whether it is a task of the control plane that the control plane has not signed."""
        header = letter.headers.get(INTERNAL_HEADER)
        return letter.task in INTERNAL_TASKS and not self._app.internal_tasks.accepts(header, letter.asked)

    def unspent(self, taken: Sequence[Taken], said: Mapping[str, str]) -> tuple[list[Taken], list[Post]]:
        """Those that were not served before, and what goes out for the others. Of two copies that came together one is served."""
        known, fresh, refused = dict(said), [], []
        for each in taken:
            nonce = each.proven.nonce
            if nonce is None or nonce.key not in known:
                fresh.append(each)
                if nonce is not None:
                    known[nonce.key] = OPEN
                continue
            letter = each.letter
            why = self._app.prover.replayed(letter.asked, letter.headers, each.proven, known[nonce.key])
            refused += self.refused(Taken(letter=letter, tag=each.tag), why)
        return fresh, refused

    def refused(self, taken: Taken, why: Unproven) -> list[Post]:
        """What goes out for one that is not served; it is written down."""
        self._app.prover.write_down(why)
        answer = Answered(why.answer.as_dict()) if why.told and self._may_tell() else None
        return [Post(taken=Taken(letter=taken.letter, tag=taken.tag), answer=answer, spare=True)]

    def _may_tell(self) -> bool:
        """Each answer is a key in Redis: under a flood most of those who are not believed get none."""
        now = self._app.deps.clock.monotonic()
        if now - self._telling_since >= 1.0:
            self._telling_since, self._told = now, 0
        self._told += 1
        return self._told <= MOST_TOLD_A_SECOND

    def _keep_up(self) -> None:
        tenants = self._app.tenants
        if not tenants.were_read:
            tenants.read()
        elif tenants.is_older_than(FRESH_S) and (self._reading is None or self._reading.done()):
            self._reading = self._threads.submit(tenants.read)
