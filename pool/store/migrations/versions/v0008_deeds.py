"""What was done is found at once, however many requests were refused since."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0008_deeds"
down_revision = "v0007_org_keys"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
