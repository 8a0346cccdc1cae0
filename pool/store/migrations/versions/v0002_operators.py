"""What operators ask for and do: warm targets set at run time, and the deeds that are no move of a worker."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0002_operators"
down_revision = "v0001_initial"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
