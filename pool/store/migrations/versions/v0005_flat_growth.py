"""Indexes that keep the passes' cost from growing with what they do not act on."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0005_flat_growth"
down_revision = "v0004_what_idling_costs"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
