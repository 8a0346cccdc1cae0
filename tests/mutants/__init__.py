"""Every promise, broken on purpose. `make mutants` removes one fence after the other, in a copy of
the code, and fails unless a test fails.
"""

from tests.mutants import (
    alive,
    alone,
    board,
    clauses,
    embedded,
    exclusive,
    front,
    holders,
    leaks,
    rules,
    shares,
    strangers,
    telling,
    trust,
    wedges,
)

MUTANTS = (
    *exclusive.MUTANTS,
    *rules.MUTANTS,
    *clauses.MUTANTS,
    *alive.MUTANTS,
    *leaks.MUTANTS,
    *wedges.MUTANTS,
    *telling.MUTANTS,
    *trust.MUTANTS,
    *board.MUTANTS,
    *alone.MUTANTS,
    *strangers.MUTANTS,
    *front.MUTANTS,
    *holders.MUTANTS,
    *embedded.MUTANTS,
    *shares.MUTANTS,
)
