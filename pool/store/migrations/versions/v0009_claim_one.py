"""One acquire alone takes a shorter way."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0009_claim_one"
down_revision = "v0008_deeds"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
