"""The whole schema."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0001_initial"
down_revision = None


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
