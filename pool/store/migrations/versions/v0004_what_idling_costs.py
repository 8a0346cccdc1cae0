"""What unused workers cost, kept by the database itself; and what passes saw."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0004_what_idling_costs"
down_revision = "v0003_rollouts"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
