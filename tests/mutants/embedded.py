"""The embedded Postgres is durable, private, of one major version, and ends with `up`."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, broken

_POSTGRES = "tests/integration/test_embedded_postgres.py"
_SUPERVISOR = "tests/integration/test_supervisor.py"

MUTANTS: tuple[Mutant, ...] = (
    broken(
        63,
        "a cluster of another major version is started",
        "pool/ops/up/postgres.py",
        "    if major != str(pgbinaries.MAJOR):",
        "    if not major:",
        f"{_POSTGRES}::test_cluster_of_another_major_version_is_refused_with_a_hint_and_left_alone",
    ),
    broken(
        63,
        "a Postgres of any major version on PATH is used",
        "pool/ops/up/pgbinaries.py",
        ' and _major(folder / "postgres") == MAJOR else None',
        " else None",
        f"{_POSTGRES}::test_postgres_of_another_major_version_on_path_is_skipped",
    ),
    broken(
        63,
        "commits of the embedded Postgres are not synced",
        "pool/ops/up/postgres.py",
        '    "fsync": "on",',
        '    "fsync": "off",',
        f"{_POSTGRES}::test_committed_rows_are_synced_and_kept_over_a_restart",
    ),
    broken(
        63,
        "a failed initdb leaves its files",
        "pool/ops/up/postgres.py",
        "    if done.returncode:\n        shutil.rmtree(draft, ignore_errors=True)\n",
        "    if done.returncode:\n",
        f"{_POSTGRES}::test_failed_initdb_leaves_no_cluster",
    ),
    broken(
        63,
        "an unfinished cluster stays beside the whole one",
        "pool/ops/up/postgres.py",
        "    _remove_drafts(data_dir.postgres)\n",
        "",
        f"{_POSTGRES}::test_unfinished_cluster_is_created_again",
    ),
    broken(
        63,
        "a socket path of any length is used for clients",
        "pool/ops/up/postgres.py",
        "_SOCKET_PATH_LIMIT = 107",
        "_SOCKET_PATH_LIMIT = 1070",
        f"{_POSTGRES}::test_socket_that_clients_cannot_name_is_reached_by_a_short_link_that_is_kept",
    ),
    broken(
        63,
        "Postgres starts although the user has set a database",
        "pool/ops/cli/up.py",
        "        if self.settings.pool.database_url:",
        "        if not self.settings:",
        f"{_POSTGRES}::test_database_url_of_the_user_starts_no_postgres",
    ),
    broken(
        63,
        "the processes of Postgres count as leftovers",
        "pool/ops/up/processes.py",
        " if names.get(parent_of(ref)) != name}",
        "}",
        f"{_SUPERVISOR}::test_every_component_becomes_ready_in_order_and_is_recorded",
    ),
    Mutant(
        63,
        "a stop while the database is created kills up at once",
        (
            Edit(
                file="pool/ops/up/supervisor.py",
                was="        with signals.installed():\n            recorded",
                becomes="        if plan:\n            recorded",
            ),
            Edit(
                file="pool/ops/up/supervisor.py",
                was="            return supervisor.run(judge(components, recorded, running))",
                becomes="            with signals.installed():\n"
                "                return supervisor.run(judge(components, recorded, running))",
            ),
        ),
        (f"{_SUPERVISOR}::test_nothing_is_left_when_it_is_stopped_while_the_database_is_created",),
    ),
    broken(
        63,
        "Postgres waits for its clients before it ends",
        "pool/ops/up/components.py",
        "        stop_signal=signal.SIGINT,\n",
        "",
        f"{_POSTGRES}::test_stop_signal_ends_the_server_while_clients_are_connected",
    ),
    broken(
        63,
        "a server of another account sees the secrets of our environment",
        "pool/ops/up/hosting.py",
        "        return component.env if component.account else {**self._env, **component.env}",
        "        return {**self._env, **component.env}",
        f"{_POSTGRES}::test_server_of_another_account_inherits_no_environment",
    ),
    broken(
        63,
        "root runs binaries that another user can change",
        "pool/ops/up/pgbinaries.py",
        "    _refuse_foreign(copy)\n    return copy / ",
        "    return copy / ",
        f"{_POSTGRES}::test_root_copies_binaries_that_only_root_can_reach",
    ),
)
