"""What can happen to the components of `up`, and what the supervisor can be told to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from pool.embedded.processes import Exit


@dataclass(frozen=True, slots=True)
class Adopted:
    """A component that still ran was taken over."""

    name: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A component has shown that it is well."""

    name: str


@dataclass(frozen=True, slots=True)
class Exited:
    """A component has ended, or could not be executed."""

    name: str
    how: Exit


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Someone wants everything to end; asking again hurries."""


@dataclass(frozen=True, slots=True)
class PodsCleared:
    """The local pods are gone, or were given up on."""


Event = Adopted | Heard | Exited | Ticked | StopRequested | PodsCleared


@dataclass(frozen=True, slots=True)
class Start:
    """Start this component."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask this component to end (SIGTERM)."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this component now (SIGKILL)."""

    name: str


@dataclass(frozen=True, slots=True)
class TellReady:
    """Say that this component is ready, `after_s` from its start."""

    name: str
    after_s: float


@dataclass(frozen=True, slots=True)
class TellStopped:
    """Say that this component has ended as it was asked to."""

    name: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Say that something went wrong."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowLog:
    """Show the end of this component's log."""

    name: str


@dataclass(frozen=True, slots=True)
class AllReady:
    """Everything has been ready for the first time."""


@dataclass(frozen=True, slots=True)
class ClearPods:
    """Remove the local pods."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing is left; end with this exit code."""

    code: int


Saying = TellReady | TellStopped | Warn | ShowLog
Action = Start | Terminate | Kill | AllReady | ClearPods | Finish | Saying
