"""What the client does for a holder: several workers or none, a function that may run again, calls to
the worker, and the trace of a request.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant, broken

_HTTP = "tests/integration/test_client_http.py"
_INCOMING = "tests/unit/test_incoming_messages.py"
_RUNNING = "tests/integration/test_client_running.py"
_WIRE = "tests/integration/test_client_wire.py::TestGivingUp"
_FAKES = "tests/integration/test_client_contract.py::TestFake"

MUTANTS: tuple[Mutant, ...] = (
    broken(
        12,
        "some of several workers stay held though one was refused",
        "pool/client/session.py",
        "            self.notify([undo for each, _ in opened for undo in self.core.abandon(each, self.now())])\n",
        "",
        f"{_FAKES}::test_none_of_several_workers_is_kept_if_one_is_refused",
        f"{_WIRE}::test_several_acquires_that_are_not_answered_are_all_cancelled",
    ),
    broken(
        12,
        "some of several workers stay held though one was refused, with asyncio",
        "pool/client/aio_session.py",
        "            self.notify([undo for each, _ in opened for undo in self.core.abandon(each, self.now())])\n",
        "",
        f"{_FAKES}::test_none_of_several_workers_is_kept_if_one_is_refused",
    ),
    broken(
        12,
        "several workers are not released at the end of their block",
        "pool/client/core.py",
        "        return [self.release(lease.grant.claim_id, lease.condition) for lease in held]\n",
        "        return []\n",
        f"{_FAKES}::test_several_workers_are_acquired_and_released_together",
    ),
    broken(
        3,
        "a function that may run only once runs again",
        "pool/client/running.py",
        "    return attempts if idempotent else 1\n",
        "    return attempts\n",
        f"{_RUNNING}::test_without_leave_to_run_twice_a_lost_claim_is_raised",
    ),
    broken(
        3,
        "a function runs again after an error of its own",
        "pool/client/blocking.py",
        "        return worker.lost\n",
        "        return may_run_again\n",
        f"{_FAKES}::test_an_error_of_the_function_is_raised_once_and_its_worker_released",
        f"{_RUNNING}::test_a_claim_that_the_function_released_is_not_lost",
    ),
    broken(
        3,
        "another address gets the proof of a claim",
        "pool/client/http_calls.py",
        '    return urlsplit(url or "")[:2] == urlsplit(endpoint)[:2]\n',
        "    return bool(url and endpoint)\n",
        f"{_HTTP}::test_no_other_address_gets_the_proof",
    ),
    broken(
        40,
        "any text is taken for a trace",
        "tasks/lane/messages.py",
        "        known[tracecontext.HEADER] = tracecontext.valid(trace)\n",
        "        known[tracecontext.HEADER] = str(trace)\n",
        f"{_INCOMING}::test_a_malformed_trace_is_ignored_and_noticed",
    ),
    broken(
        35,
        "an activation has lost the trace of its request",
        "pool/lifecycle/activating.py",
        " | trace\n",
        "\n",
        "tests/integration/test_claiming.py::test_an_activation_is_in_the_trace_of_the_request_that_it_answers",
    ),
)
