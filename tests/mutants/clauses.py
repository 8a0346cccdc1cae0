"""The rules in the database, one clause after the other: which worker is picked, which waiter is
next, what counts, what ends.
"""

from __future__ import annotations

from pathlib import Path

from tests.mutants.mutant import PASSES, RULES, STORE, Mutant, broken

BAD_ITEMS = "tests/integration/test_bad_items.py"


def _rule(promise: int, says: str, was: str, becomes: str, test: str) -> Mutant:
    """One clause of a rule, which a test of the store must check."""
    where = next((f for f in sorted(Path(RULES).glob("*.sql")) if was in f.read_text()), Path(RULES))
    return broken(promise, says, str(where), was, becomes, test if "::" in test else f"{STORE}::{test}")


MUTANTS: tuple[Mutant, ...] = (
    _rule(
        2,
        "a request whose claim has ended is not spent",
        "AND r.claim_id = x.claim_id AND r.state = 'granted';",
        "AND false;",
        "test_a_request_is_decided_once",
    ),
    _rule(
        2,
        "the oldest reply addresses are kept instead of the newest",
        "ORDER BY x.n DESC LIMIT 16",
        "ORDER BY x.n LIMIT 16",
        "test_replies_are_added_once_each",
    ),
    _rule(
        4,
        "a parked worker of one org is picked for another",
        "w.state = 'hot_idle' AND w.org = p_org AND",
        "w.state = 'hot_idle' AND",
        "test_the_worker_parked_last_is_picked_and_only_for_its_org",
    ),
    _rule(
        5,
        "a warm worker of any profile is picked",
        "w.state = 'idle' AND w.profile = p_profile\n      ORDER BY",
        "w.state = 'idle'\n      ORDER BY",
        "test_the_idle_worker_that_was_ready_first_is_picked",
    ),
    _rule(
        7,
        "waiters are not ordered by their org's use",
        "ORDER BY 2, 3, 1",
        "ORDER BY 3, 1",
        "test_the_queue_serves_the_least_use_for_its_weight_first",
    ),
    _rule(
        7,
        "the last waiter of an org is served first",
        "ORDER BY q.created_at, q.pk LIMIT p_most FOR UPDATE SKIP LOCKED",
        "ORDER BY q.created_at DESC, q.pk LIMIT p_most FOR UPDATE SKIP LOCKED",
        "test_the_queue_breaks_ties_by_the_oldest_wait_and_is_fifo_within_an_org",
    ),
    _rule(
        7,
        "a new request takes the warm worker of a waiter that is locked by another transaction",
        "contested := c.anyone_waits AND warmpool_anyone_waits(a.profile, c.at);",
        "contested := false;",
        "test_a_new_request_overtakes_no_waiter_that_could_use_the_worker",
    ),
    _rule(
        7,
        "a new request takes its org's parked worker from the org's own waiter",
        "NOT (contested AND warmpool_org_waits(",
        "NOT (false AND warmpool_org_waits(",
        "test_a_new_request_overtakes_no_waiter_that_could_use_the_worker",
    ),
    _rule(
        7,
        "room below an org's cap after an expired claim is not used for its waiter",
        "coalesce(p ->> 'cause', nullif(p ->> 'detail', ''), p ->> 'reason')), warmpool_freed(h), '{}'));",
        "coalesce(p ->> 'cause', nullif(p ->> 'detail', ''), p ->> 'reason')), '{}', '{}'));",
        f"{PASSES}::test_an_expired_claim_makes_room_for_its_orgs_waiter_at_once",
    ),
    _rule(
        19,
        "parked workers of an org that has only a hot-idle cap are not counted",
        "coalesce(o.hot_idle_floor > 0 OR o.hot_idle_cap > 0, false)",
        "coalesce(o.hot_idle_floor > 0, false)",
        "test_parking_is_not_counted_without_a_floor_or_a_cap",
    ),
    _rule(
        25,
        "every refusal is a miss",
        "CASE WHEN x.reason IN ('no_warm_worker', 'pool_cap') THEN c.at END",
        "CASE WHEN x.reason IS NOT NULL THEN c.at END",
        "test_the_cause_of_a_miss_is_the_orgs_cap_then_the_pools",
    ),
    _rule(
        29,
        "an acquire does not check its org's cap",
        "CASE WHEN (o).cap > 0 THEN (o).cap - (o).in_use ELSE 1000000 END",
        "1000000",
        "test_claims_are_counted_up_to_the_cap",
    ),
    _rule(
        29,
        "the cap before a concurrent change is used",
        "      o := warmpool_lock_org(c, a.org);\n      CONTINUE WHEN o.id IS NULL;\n",
        "      PERFORM warmpool_lock_org(c, a.org);\n",
        "test_the_cap_in_force_when_the_claim_begins_decides",
    ),
    _rule(
        30,
        "a worker that becomes ready skips a locked waiter, which then waits for the pass",
        "again := ARRAY[shape];",
        "NULL;",
        "test_a_waiter_locked_by_another_transaction_is_matched_again",
    ),
    _rule(
        30,
        "a waiter that is locked while workers are matched then waits for the pass",
        "      again := again OR cardinality(waiters) = 0;\n      CONTINUE",
        "      CONTINUE",
        "test_a_waiter_locked_by_another_transaction_is_matched_again",
    ),
    _rule(
        30,
        "a waiter that is locked while its parked worker is matched then waits for the pass",
        "      again := again OR cardinality(waiters) = 0;\n      EXIT",
        "      EXIT",
        "test_a_waiter_locked_by_another_transaction_is_matched_again",
    ),
    _rule(
        46,
        "a waiter with an address that the database cannot read is never decided",
        "c.at - r.created_at), 'replies', r.replies);",
        "c.at - r.created_at), 'replies', r.replies::jsonb::text);",
        f"{BAD_ITEMS}::test_answer_that_cannot_be_delivered_is_marked_and_the_others_are_delivered",
    ),
    broken(
        46,
        "an answer whose row cannot be read is retried at every reap",
        "pool/lifecycle/effects.py",
        "        _mark(deps, _Delivered(done=[pk], undeliverable=[(f\"request {pk}\", cause)]))\n        return 1\n",
        "        return 0\n",
        f"{BAD_ITEMS}::test_decided_row_of_an_older_version_that_cannot_be_read_is_marked_undeliverable",
    ),
)  # fmt: skip
