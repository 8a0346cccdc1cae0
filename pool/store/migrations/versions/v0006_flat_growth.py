"""Indexes that keep the passes' cost from growing with what they do not act on."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0006_flat_growth"
down_revision = "v0005_lane"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
