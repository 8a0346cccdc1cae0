"""The table of moves compared with the design, written a second time by hand."""

from __future__ import annotations

from itertools import product

import pytest

from pool.core import states
from pool.core.states import MOVES, PAIRS, State

# from: to. Copied from the design, never from the code that it checks.
DRAWN = """
spawning:   idle reserved hot draining lost
idle:       reserved hot draining lost
reserved:   activating draining lost
activating: hot draining lost
hot:        hot_idle draining lost
hot_idle:   hot draining lost
draining:   retired
retired:
lost:
"""
LEGAL = frozenset(
    (State(frm), State(to))
    for frm, _, targets in (line.partition(":") for line in DRAWN.split("\n") if line)
    for to in targets.split()
)


@pytest.mark.parametrize(("frm", "to"), list(product(State, State)), ids=str)
def test_a_move_is_legal_exactly_if_it_is_in_the_table(frm: State, to: State) -> None:
    assert (to in MOVES[frm]) == ((frm, to) in LEGAL)


def test_the_pairs_of_the_triggers_are_the_legal_moves() -> None:
    assert len(PAIRS) == len(set(PAIRS))
    assert set(PAIRS) == LEGAL


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(MOVES) == set(State)
    assert {to for _, to in LEGAL} == set(State) - {State.SPAWNING}


@pytest.mark.parametrize("to", State, ids=str)
@pytest.mark.parametrize("terminal", [State.RETIRED, State.LOST], ids=str)
def test_nothing_leads_out_of_a_terminal_state(terminal: State, to: State) -> None:
    assert to not in MOVES[terminal]


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("TERMINAL", "retired lost"),
        ("LIVE", "spawning idle reserved activating hot hot_idle draining"),
        ("LEAVING", "draining"),
        ("ENTRY", "spawning idle hot_idle"),
        ("CLAIMED", "reserved activating hot"),
        ("CLAIMABLE", "idle hot_idle"),
        ("BOUND", "reserved activating hot hot_idle"),
        ("PODDED", "idle reserved activating hot hot_idle draining"),
        ("DRAINABLE", "spawning idle reserved activating hot hot_idle"),
        ("LOSABLE", "spawning idle reserved activating hot hot_idle"),
    ],
)
def test_a_derived_set_contains_exactly_these_states(name: str, members: str) -> None:
    assert getattr(states, name) == frozenset(map(State, members.split()))


def test_leading_to_names_the_states_that_lead_to_all_of_the_targets() -> None:
    assert states.leading_to(State.RETIRED) == {State.DRAINING}
    assert states.leading_to(State.HOT, State.RESERVED) == {State.SPAWNING, State.IDLE}
    assert states.leading_to(State.SPAWNING) == frozenset()
