"""Says what it does."""

from __future__ import annotations

from tests.mutants.mutant import CLAIMING, FIRST_SQL, RUNNING, SCHEMA, Mutant, broken

MUTANTS: tuple[Mutant, ...] = (
    broken(
        35,
        "a move is not written down",
        FIRST_SQL,
        "CREATE TRIGGER workers_journal_update AFTER UPDATE ON workers FOR EACH ROW WHEN (NEW.state <> OLD.state OR",
        "CREATE TRIGGER workers_journal_update AFTER UPDATE ON workers FOR EACH ROW WHEN (",
        f"{SCHEMA}::test_a_move_is_journalled_once_with_who_why_and_epoch",
    ),
    broken(
        35,
        "a slot is not written down",
        FIRST_SQL,
        "CREATE TRIGGER workers_journal_insert AFTER INSERT ON workers FOR EACH ROW EXECUTE",
        "CREATE TRIGGER workers_journal_insert AFTER INSERT ON workers FOR EACH ROW WHEN (false) EXECUTE",
        f"{SCHEMA}::test_a_slot_is_journalled_when_it_is_made",
    ),
    broken(
        36,
        "a run that failed is a success",
        "pool/passes/running.py",
        "                passes.failed(tx, run.name, outcome=outcome, detail=str(exc)[:500])\n",
        "                passes.succeeded(tx, run.name, detail=outcome, actions=0, duration_s=0.0)\n",
        f"{RUNNING}::test_last_success_is_written_only_after_the_reads_succeeded",
    ),
    broken(
        36,
        "a pass is not called dark before an hour is over",
        "pool/reporting/status.py",
        "silent_s > 3 * PERIODS_S[name]",
        "silent_s > 3600",
        "tests/integration/test_status.py::test_a_pass_is_dark_after_three_periods_without_success_and_a_paused_one_is_not",
    ),
    broken(
        37,
        "the chart grants a verb less than the code uses",
        "charts/warmpool/templates/rbac.yaml",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, delete]",
        "  resources: [secrets]\n  verbs: [create, list, watch, patch, delete]",
        "tests/chart/test_objects.py::test_the_rights_are_exactly_those_beside_the_driver",
    ),
    broken(
        37,
        "the chart grants a verb more than the code uses",
        "charts/warmpool/templates/rbac.yaml",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, delete]",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, update, delete]",
        "tests/chart/test_objects.py::test_the_rights_are_exactly_those_beside_the_driver",
    ),
    broken(
        37,
        "on a cluster: a verb less than what is called",
        "charts/warmpool/templates/rbac.yaml",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, delete]",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, delete]",
        "tests/kube/test_chart.py::test_the_control_plane_works_under_exactly_the_rights_of_the_chart",
    ),
    broken(
        37,
        "on a cluster: a verb more than what is called",
        "charts/warmpool/templates/rbac.yaml",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, delete]",
        "  resources: [secrets]\n  verbs: [create, get, list, watch, patch, update, delete]",
        "tests/kube/test_chart.py::test_the_control_plane_works_under_exactly_the_rights_of_the_chart",
    ),
    broken(
        38,
        "an org may be anything",
        "pool/contract.py",
        "    if not isinstance(value, str) or not _ORG.match(value):\n",
        "    if value is None:\n",
        f"{CLAIMING}::test_bad_input_names_its_field_and_writes_nothing",
    ),
    broken(
        38,
        "any number will do",
        "pool/contract.py",
        "    if not least <= value <= most:\n",
        "    if value != value:\n",
        f"{CLAIMING}::test_bad_input_names_its_field_and_writes_nothing",
    ),
    broken(
        38,
        "an argument that nobody knows is passed over",
        "pool/contract.py",
        "            raise InvalidInput(str(name)[:80], f\"is not an argument; known are {', '.join(names)}\")\n",
        "            continue\n",
        "tests/unit/test_contract.py::test_arguments_are_bound_by_name_however_they_were_sent",
    ),
    broken(
        38,
        "one message of a wrong shape ends its consumer",
        "tasks/serving.py",
        "            except Exception as exc:  # noqa: BLE001 - whatever is wrong with it, it is one message",
        "            except ZeroDivisionError as exc:",
        "tests/integration/test_end_to_end.py::test_messages_that_are_no_task_of_ours_harm_nobody",
    ),
)
