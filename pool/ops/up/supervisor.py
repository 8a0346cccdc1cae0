"""Carries out what `supervision` decides: one loop that reports events and executes actions.

The components do not depend on this process. If it is killed, they keep running and serving, but
nothing restarts them; the next `up` with the same data directory takes them over (`adoption`).
SIGINT, SIGTERM and SIGHUP stop everything in order, with exit code 0; a second signal kills what is
left.
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

from pool.core.clock import Clock
from pool.ops.up import events as ev
from pool.ops.up.adoption import Leftovers, judge
from pool.ops.up.components import Component, ComponentKind
from pool.ops.up.datadir import DataDir, write_private
from pool.ops.up.hosting import Host
from pool.ops.up.privacy import PRIVATE_UMASK
from pool.ops.up.processes import stop_all, writers_to
from pool.ops.up.progress import StartProgress
from pool.ops.up.supervision import Supervision
from pool.ops.up.terminal import Terminal

_TICK_S = 0.1
_LEFTOVER_GRACE_S = 15.0
_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024

# Removes the local pods and returns a line about it; its argument returns whether to hurry.
ClearPods = Callable[[Callable[[], bool]], str]


@dataclass(slots=True)
class StopSignals:
    """Received stop signals. The handler only appends, because nothing that takes a lock is safe in a signal
    handler."""

    received: int = 0
    pending: deque[signal.Signals] = field(default_factory=deque)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.received += 1
        self.pending.append(signal.Signals(number))

    def hurried(self) -> bool:
        return self.received > 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the stop signals in this block; a SIGHUP that is ignored (nohup) stays ignored."""
        wanted = [signal.SIGINT, signal.SIGTERM]
        wanted += [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
        before = {sig: signal.signal(sig, self.handle) for sig in wanted}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorContext:
    """Dependencies of a supervisor, apart from its components."""

    terminal: Terminal
    clock: Clock
    progress: StartProgress
    clear_pods: ClearPods
    # What to show once everything is ready.
    welcome: Callable[[], Sequence[str]]


# Returns the components to run, given the names of those still running from an earlier run.
Plan = Callable[[frozenset[str]], Sequence[Component]]


def supervise(data_dir: DataDir, plan: Plan, around: SupervisorContext) -> int:
    """Lock the data directory, take over components that still run, run until stopped, and return the exit
    code."""
    lock, umask, signals = data_dir.lock(), os.umask(PRIVATE_UMASK), StopSignals()
    try:
        # Before the plan, which may take seconds to create a database: a stop during it is then orderly.
        with signals.installed():
            recorded, running = data_dir.read_record(), writers_to(data_dir.logs)
            components = plan(frozenset(recorded) | frozenset(running.values()))
            host = Host(data_dir, components, os.environ, around.clock)
            supervisor = Supervisor(components, host, around, signals)
            return supervisor.run(judge(components, recorded, running))
    finally:
        os.umask(umask)
        os.close(lock)


class Supervisor:
    """One run of `up`."""

    def __init__(
        self, components: Sequence[Component], host: Host, around: SupervisorContext, signals: StopSignals
    ) -> None:
        self._components = {component.name: component for component in components}
        self._state = Supervision(components)
        self._host = host
        self._around = around
        self._signals = signals
        self._warming = False
        self._code: int | None = None

    def run(self, leftovers: Leftovers) -> int:
        """Run until stopped, and return the exit code."""
        never = threading.Event()
        self._settle(leftovers)
        while self._code is None:
            self._step()
            self._around.clock.wait(never, _TICK_S)
        return self._code

    def _settle(self, leftovers: Leftovers) -> None:
        if leftovers.end:
            names = ", ".join(sorted(set(leftovers.end.values())))
            self._around.terminal.tell(f"stopping processes of an earlier run: {names}")
            signals = {ref: self._stop_signal(name) for ref, name in leftovers.end.items()}
            stop_all(signals, grace_s=_LEFTOVER_GRACE_S, clock=self._around.clock)
        for name, ref in leftovers.adopt.items():
            self._host.adopt(name, ref)
            self._report(ev.Adopted(name))

    def _step(self) -> None:
        while self._signals.pending:
            self._stop_requested(self._signals.pending.popleft())
        for name, how in self._host.exits().items():
            self._report(ev.Exited(name, how))
        for name in self._host.heard():
            self._report(ev.Heard(name))
        self._report(ev.Ticked())
        self._warm_up()

    def _stop_requested(self, sig: signal.Signals) -> None:
        how = (
            "killing what still runs"
            if self._state.stopping
            else "stopping; press Ctrl-C again to kill what still runs"
        )
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
                self._host.send(name, self._stop_signal(name))
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

    def _stop_signal(self, name: str) -> signal.Signals:
        component = self._components.get(name)
        return component.stop_signal if component else signal.SIGTERM

    def _tell_ready(self, component: Component, after_s: float) -> None:
        if component.published:
            write_private(component.published.path, component.published.text)
        name = component.name
        if self._host.adopted(name):
            self._around.terminal.tell(f"{name:<9}already runs, taken over, pid {self._host.pid(name)}")
        else:
            word = "done" if component.kind is ComponentKind.ONE_SHOT else "ready"
            self._around.terminal.tell(f"{name:<9}{word} in {after_s:.1f} s")

    def _clear_pods(self) -> None:
        try:
            result = self._around.clear_pods(self._signals.hurried)
        except Exception as exc:  # noqa: BLE001 - the other components must be stopped in any case
            self._around.terminal.warn(f"removing the pods failed: {type(exc).__name__}: {exc}")
        else:
            if result:
                self._around.terminal.tell(result)
        self._report(ev.PodsCleared())

    def _show_log(self, name: str) -> None:
        log = self._host.log(name)
        text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
        for line in text.splitlines()[-_TAIL_LINES:]:
            self._around.terminal.warn(f"  {name} | {line}")
        self._around.terminal.warn(f"complete log: {log}")

    def _now(self) -> float:
        return self._around.clock.monotonic()
