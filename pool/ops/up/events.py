"""Events of the components of `up`, and actions of the supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from pool.ops.up.processes import Exit


@dataclass(frozen=True, slots=True)
class Adopted:
    """A running component was taken over."""

    name: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A component showed a new sign of health."""

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
    """A stop signal was received; a second one kills what still runs."""


@dataclass(frozen=True, slots=True)
class PodsCleared:
    """The local pods are removed, or removing them has failed."""


Event = Adopted | Heard | Exited | Ticked | StopRequested | PodsCleared


@dataclass(frozen=True, slots=True)
class Start:
    """Start this component."""

    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Send this component its stop signal."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill this component (SIGKILL)."""

    name: str


@dataclass(frozen=True, slots=True)
class TellReady:
    """Print that this component is ready, `after_s` after its start."""

    name: str
    after_s: float


@dataclass(frozen=True, slots=True)
class TellStopped:
    """Print that this component has stopped as requested."""

    name: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Print a problem."""

    text: str


@dataclass(frozen=True, slots=True)
class ShowLog:
    """Show the end of this component's log."""

    name: str


@dataclass(frozen=True, slots=True)
class AllReady:
    """Every component has been ready once."""


@dataclass(frozen=True, slots=True)
class ClearPods:
    """Remove the local pods."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Exit with this code; nothing runs any more."""

    code: int


Saying = TellReady | TellStopped | Warn | ShowLog
Action = Start | Terminate | Kill | AllReady | ClearPods | Finish | Saying
