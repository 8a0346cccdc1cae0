"""Simulate: a demand trace replayed against pool settings in virtual time. What to make and what to let go is decided by the pool's own
planning; claiming is simple queues. Answers "what should my warm target and TTL be" before anybody pays for it."""

from pool.simulating.engine import Assumptions, simulate
from pool.simulating.outcome import Outcome
from pool.simulating.traces import Trace

__all__ = ["Assumptions", "Outcome", "Trace", "simulate"]
