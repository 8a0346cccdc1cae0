"""Decides what the supervisor does next. Pure: events in, actions out; it starts nothing, does not
wait, reads no clock.

    waiting ──▶ starting ──▶ ready            a one-shot: starting ──▶ done
                 ▲   │         │
                 │   ▼         ▼
              resting ◀──── ending            ending: stop signal sent, killed after the grace period

A stage starts once every component of the stage before it has been ready. A component that ends is
started again after a pause, which grows with each failure; one that fails repeatedly before it was
ever ready ends the whole run. Stopping goes from the last stage to the first; the local pods are
removed when only the servers still run, and nothing creates pods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pool.core.backoff import Backoff
from pool.ops.up.components import Component, ComponentKind, StartStage
from pool.ops.up.events import (
    Action,
    Adopted,
    AllReady,
    ClearPods,
    Event,
    Exited,
    Finish,
    Heard,
    Kill,
    PodsCleared,
    ShowLog,
    Start,
    StopRequested,
    TellReady,
    TellStopped,
    Terminate,
    Ticked,
    Warn,
)
from pool.ops.up.processes import Exit

RESTART = Backoff(first_s=0.2, factor=2.0, limit_s=5.0)
FORGIVEN_AFTER_S = 30.0
FAILED_STARTS_LIMIT = 5
# More than enough for the longest pause, and small enough that the power does not overflow.
_CRASHES_COUNTED = 30


class ComponentPhase(StrEnum):
    """The phase of a component; see the diagram above."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DONE = "done"
    RESTING = "resting"
    ENDING = "ending"
    GONE = "gone"

    @property
    def running(self) -> bool:
        return self in (ComponentPhase.STARTING, ComponentPhase.READY, ComponentPhase.ENDING)


@dataclass(slots=True)
class _Part:
    """A component and its state."""

    spec: Component
    phase: ComponentPhase = ComponentPhase.WAITING
    started_at: float = 0.0
    heard_at: float = 0.0
    # End of the pause (resting) or of the grace period (ending).
    until: float = 0.0
    crashes: int = 0
    has_been_ready: bool = False

    def begin(self, now: float) -> None:
        self.phase, self.started_at, self.heard_at = ComponentPhase.STARTING, now, now


class Supervision:
    """The state of one run of `up`."""

    def __init__(self, components: Sequence[Component]) -> None:
        self._parts = {component.name: _Part(component) for component in components}
        self._told_ready = False
        self._stop_requests = 0
        self._failed = False
        self._pods_asked = False
        self._pods_cleared = False
        self._finished = False

    @property
    def stopping(self) -> bool:
        return self._stop_requests > 0

    @property
    def hurried(self) -> bool:
        return self._stop_requests > 1

    def phase(self, name: str) -> ComponentPhase:
        """Return the phase of a component."""
        return self._parts[name].phase

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and return the actions to take, in order."""
        match event:
            case Adopted(name):
                self._parts[name].begin(now)
                return []
            case Heard(name):
                return self._heard(self._parts[name], now)
            case Exited(name, how):
                return self._exited(self._parts[name], how, now)
            case StopRequested():
                self._stop_requests += 1
                return self._tick(now)
            case PodsCleared():
                self._pods_cleared = True
                return self._tick(now)
            case Ticked():
                return self._tick(now)

    def _heard(self, part: _Part, now: float) -> list[Action]:
        part.heard_at = now
        if part.phase is not ComponentPhase.STARTING or part.spec.kind is ComponentKind.ONE_SHOT:
            return []
        part.phase, part.has_been_ready = ComponentPhase.READY, True
        return [TellReady(part.spec.name, now - part.started_at), *self._all_ready()]

    def _all_ready(self) -> list[Action]:
        if self._told_ready or not all(part.has_been_ready for part in self._parts.values()):
            return []
        self._told_ready = True
        return [AllReady()]

    def _exited(self, part: _Part, how: Exit, now: float) -> list[Action]:
        name = part.spec.name
        if self.stopping:
            part.phase = ComponentPhase.GONE
            return [TellStopped(name), *self._tick(now)]
        if part.spec.kind is ComponentKind.ONE_SHOT and how.clean:
            part.phase, part.has_been_ready = ComponentPhase.DONE, True
            return [TellReady(name, now - part.started_at), *self._all_ready()]
        return self._crashed(part, how, now)

    def _crashed(self, part: _Part, how: Exit, now: float) -> list[Action]:
        lasted = now - part.started_at
        part.crashes = min(
            1 if lasted >= FORGIVEN_AFTER_S and part.has_been_ready else part.crashes + 1, _CRASHES_COUNTED
        )
        if not part.has_been_ready and part.crashes >= FAILED_STARTS_LIMIT:
            part.phase, self._failed = ComponentPhase.GONE, True
            self._stop_requests = max(self._stop_requests, 1)
            gave_up = Warn(
                f"{part.spec.name} {how}; it failed {part.crashes} times before it was ready, "
                "stopping everything"
            )
            return [gave_up, ShowLog(part.spec.name), *self._tick(now)]
        pause = RESTART.nominal(part.crashes)
        part.phase, part.until = ComponentPhase.RESTING, now + pause
        return [Warn(f"{part.spec.name} {how}; starting it again in {pause:.1f} s")]

    def _tick(self, now: float) -> list[Action]:
        if self.stopping:
            return self._stop_more(now)
        open_rank = self._open_rank()
        return [action for part in self._parts.values() for action in self._attend(part, open_rank, now)]

    def _open_rank(self) -> int:
        """Return the rank of the first stage with a component that has never been ready; later
        stages wait.
        """
        unready = [part.spec.stage.rank for part in self._parts.values() if not part.has_been_ready]
        return min(unready, default=len(StartStage))

    def _attend(self, part: _Part, open_rank: int, now: float) -> list[Action]:
        spec = part.spec
        match part.phase:
            case ComponentPhase.WAITING if spec.stage.rank <= open_rank:
                return self._start(part, now)
            case ComponentPhase.RESTING if now >= part.until:
                return self._start(part, now)
            case ComponentPhase.STARTING if now - part.started_at > spec.ready_limit_s:
                return self._end(
                    part, f"{spec.name} was not ready after {spec.ready_limit_s:.0f} s; restarting it", now
                )
            case ComponentPhase.READY if now - part.heard_at > spec.silence_limit_s:
                return self._end(
                    part,
                    f"{spec.name} has not responded for {spec.silence_limit_s:.0f} s; restarting it",
                    now,
                )
            case ComponentPhase.ENDING if now >= part.until:
                return [Kill(spec.name)]
        return []

    def _start(self, part: _Part, now: float) -> list[Action]:
        part.begin(now)
        return [Start(part.spec.name)]

    def _end(self, part: _Part, why: str, now: float) -> list[Action]:
        part.phase, part.until = ComponentPhase.ENDING, now + part.spec.stop_grace_s
        return [Warn(why), Terminate(part.spec.name)]

    def _stop_more(self, now: float) -> list[Action]:
        """Return the actions of the next step of stopping."""
        running = [part for part in self._parts.values() if part.phase.running]
        above_servers = [part for part in running if part.spec.stage is not StartStage.SERVERS]
        if above_servers:
            return self._leave(above_servers, now)
        if not self._pods_asked:
            self._pods_asked = True
            return [ClearPods()]
        if not self._pods_cleared:
            return []
        if running:
            return self._leave(running, now)
        return self._finish()

    def _leave(self, parts: Sequence[_Part], now: float) -> list[Action]:
        """Stop the last stage, and kill components whose grace period is over. After a second stop request,
        kill all."""
        if self.hurried:
            return [Kill(part.spec.name) for part in parts]
        last = max(part.spec.stage.rank for part in parts)
        leaving = [part for part in parts if part.spec.stage.rank == last]
        actions: list[Action] = []
        for part in leaving:
            if part.phase is not ComponentPhase.ENDING:
                part.phase, part.until = ComponentPhase.ENDING, now + part.spec.stop_grace_s
                actions.append(Terminate(part.spec.name))
            elif now >= part.until:
                actions.append(Kill(part.spec.name))
        return actions

    def _finish(self) -> list[Action]:
        if self._finished:
            return []
        self._finished = True
        return [Finish(1 if self._failed else 0)]
