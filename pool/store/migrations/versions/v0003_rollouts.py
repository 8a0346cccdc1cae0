"""Which build of each profile is the wanted one."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0003_rollouts"
down_revision = "v0002_operators"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
