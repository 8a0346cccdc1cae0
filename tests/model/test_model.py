"""The model. `WARMPOOL_MODEL` selects its length: `dev` (30 examples), `ci` (300, the same ones
each time), `nightly` (20,000).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from pool.store import Store
from tests.model.machine import STEPS, PoolMachine
from tests.support.snapshots import keep
from tests.support.world import World

EXAMPLES = {"tiny": 12, "dev": 30, "ci": 300, "nightly": 20_000}
KIND = os.environ.get("WARMPOOL_MODEL", "dev")
pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(86_400 if KIND == "nightly" else 1800)]


@pytest.fixture(scope="module", autouse=True)
def _printed() -> Iterator[None]:
    yield
    print(f"\nmodel, {KIND}: {STEPS['examples']} examples, {STEPS['steps']} steps, no promise broken")


def test_every_promise_holds_after_any_sequence_of_rules(store: Store) -> None:
    run_state_machine_as_test(machine_on(store), settings=profile(EXAMPLES[KIND]))


def machine_on(store: Store) -> type[PoolMachine]:
    """The machine; each example starts with this database empty."""
    fresh = World(store)
    return type("Machine", (PoolMachine,), {"world": fresh, "empty": keep(fresh)})


def profile(examples: int, *, shrinks: bool = True) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=20,
        derandomize=KIND != "nightly",
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
    )
