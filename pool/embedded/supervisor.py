"""Carries out what `supervision` decides: one loop that reports events and does as it is told.

The components do not depend on this process. If it is killed they go on running and serving, only nobody restarts them;
the next `up` on the same data directory takes them over (`adoption`). SIGINT, SIGTERM and SIGHUP end everything in
order and the exit code is 0, because ending was what was asked for; a second one hurries.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from pool.clock import Clock
from pool.embedded import events as ev
from pool.embedded.adoption import Leftovers, judge
from pool.embedded.components import Component, Kind
from pool.embedded.datadir import DataDir, write_private
from pool.embedded.hosting import Host
from pool.embedded.privacy import PRIVATE_UMASK
from pool.embedded.processes import stop_all, writers_to
from pool.embedded.progress import Progress
from pool.embedded.supervision import Supervision
from pool.embedded.terminal import Terminal

_TICK_S = 0.1
_LEFTOVER_GRACE_S = 15.0
_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024

# Removes the local pods; it may ask at any time whether to hurry, and returns what there is to say about it.
ClearPods = Callable[[Callable[[], bool]], str]


@dataclass(slots=True)
class StopSignals:
    """Requests to stop, as they arrive. A handler only appends: nothing that takes a lock is safe inside one."""

    received: int = 0
    pending: deque[signal.Signals] = field(default_factory=deque)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.received += 1
        self.pending.append(signal.Signals(number))

    def hurried(self) -> bool:
        return self.received > 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Take the signals that mean stop; a hang-up that was set to be ignored (nohup) stays ignored."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        wanted += [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        before = {sig: signal.signal(sig, self.handle) for sig in wanted}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a supervisor works with, apart from its components."""

    terminal: Terminal
    clock: Clock
    progress: Progress
    clear_pods: ClearPods
    # What to show once everything is ready.
    welcome: Callable[[], Sequence[str]]


# Which components to run, given the names of those that an earlier run has left running.
Plan = Callable[[frozenset[str]], Sequence[Component]]


def supervise(data_dir: DataDir, plan: Plan, around: Surroundings) -> int:
    """Own the data directory, take over what is left in it, and run until told to stop; the exit code."""
    lock, umask = data_dir.lock(), os.umask(PRIVATE_UMASK)
    try:
        recorded, running = data_dir.read_record(), writers_to(data_dir.logs)
        components = plan(frozenset(recorded) | frozenset(running.values()))
        host = Host(data_dir, components, os.environ, around.clock)
        return Supervisor(components, host, around).run(judge(components, recorded, running))
    finally:
        os.umask(umask)
        os.close(lock)


class Supervisor:
    """One run of `up`."""

    def __init__(self, components: Sequence[Component], host: Host, around: Surroundings) -> None:
        self._components = {component.name: component for component in components}
        self._state = Supervision(components)
        self._host = host
        self._around = around
        self._signals = StopSignals()
        self._warming = False
        self._code: int | None = None

    def run(self, leftovers: Leftovers) -> int:
        """Run until told to stop; the exit code."""
        never = threading.Event()
        with self._signals.installed():
            self._settle(leftovers)
            while self._code is None:
                self._step()
                self._around.clock.wait(never, _TICK_S)
        return self._code

    def _settle(self, leftovers: Leftovers) -> None:
        if leftovers.end:
            names = ", ".join(sorted(set(leftovers.end.values())))
            self._around.terminal.tell(f"ending what an earlier run has left: {names}")
            stop_all(list(leftovers.end), grace_s=_LEFTOVER_GRACE_S, clock=self._around.clock)
        for name, ref in leftovers.adopt.items():
            self._host.adopt(name, ref)
            self._report(ev.Adopted(name))

    def _step(self) -> None:
        while self._signals.pending:
            self._asked_to_stop(self._signals.pending.popleft())
        for name, how in self._host.exits().items():
            self._report(ev.Exited(name, how))
        for name in self._host.heard():
            self._report(ev.Heard(name))
        self._report(ev.Ticked())
        self._warm_up()

    def _asked_to_stop(self, sig: signal.Signals) -> None:
        how = "killing what is left" if self._state.stopping else "stopping; once more to hurry"
        self._around.terminal.live("")
        self._around.terminal.tell(f"{sig.name}: {how}")
        self._report(ev.StopRequested())

    def _warm_up(self) -> None:
        if self._warming and not self._state.stopping and self._around.progress.finished(self._now()):
            self._warming = False
            for line in self._around.welcome():
                self._around.terminal.tell(line)

    def _report(self, event: ev.Event) -> None:
        for action in self._state.handle(event, self._now()):
            self._do(action)

    def _do(self, action: ev.Action) -> None:
        match action:
            case ev.Start(name):
                self._start(name)
            case ev.Terminate(name):
                self._host.send(name, signal.SIGTERM)
            case ev.Kill(name):
                self._host.send(name, signal.SIGKILL)
            case ev.AllReady():
                self._warming = True
            case ev.ClearPods():
                self._clear_pods()
            case ev.Finish(code):
                self._host.forget_all()
                self._code = code
            case _:
                self._say(action)

    def _say(self, saying: ev.Saying) -> None:
        match saying:
            case ev.TellReady(name, after_s):
                self._tell_ready(self._components[name], after_s)
            case ev.TellStopped(name):
                self._around.terminal.tell(f"{name:<9}stopped")
            case ev.Warn(text):
                self._around.terminal.warn(text)
            case ev.ShowLog(name):
                self._show_log(name)

    def _start(self, name: str) -> None:
        failed = self._host.start(name)
        if failed is not None:
            self._report(ev.Exited(name, failed))

    def _tell_ready(self, component: Component, after_s: float) -> None:
        if component.published:
            write_private(component.published.path, component.published.text)
        name = component.name
        if self._host.adopted(name):
            self._around.terminal.tell(f"{name:<9}adopted, pid {self._host.pid(name)}")
        else:
            word = "done" if component.kind is Kind.ONE_SHOT else "ready"
            self._around.terminal.tell(f"{name:<9}{word} in {after_s:.1f} s")

    def _clear_pods(self) -> None:
        try:
            said = self._around.clear_pods(self._signals.hurried)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the rest still has to be stopped
            self._around.terminal.warn(f"clearing up the pods went wrong: {type(exc).__name__}: {exc}")
        else:
            if said:
                self._around.terminal.tell(said)
        self._report(ev.PodsCleared())

    def _show_log(self, name: str) -> None:
        log = self._host.log(name)
        text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
        for line in text.splitlines()[-_TAIL_LINES:]:
            self._around.terminal.warn(f"  {name} | {line}")
        self._around.terminal.warn(f"the whole log: {log}")

    def _now(self) -> float:
        return self._around.clock.monotonic()
