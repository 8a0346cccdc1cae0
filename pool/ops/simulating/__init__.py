"""Replay a demand trace against pool settings in virtual time. The pool's own planning code decides
what to start and what to remove; claiming is modelled with simple queues. It answers "what should
my warm target and TTL be?"."""

from pool.ops.simulating.engine import Assumptions, simulate
from pool.ops.simulating.outcome import SimulationOutcome
from pool.ops.simulating.traces import Trace

__all__ = ["Assumptions", "SimulationOutcome", "Trace", "simulate"]
