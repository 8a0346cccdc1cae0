"""Many calls are decided in one statement: the functions of the lane take the place of the one that claimed for one."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0005_lane"
down_revision = "v0004_what_idling_costs"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
