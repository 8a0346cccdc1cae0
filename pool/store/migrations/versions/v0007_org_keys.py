"""Keys of orgs by version; releases and renewals that reach the claims of one org only."""

from alembic import op

from pool.store.migrations import run_sql

revision = "v0007_org_keys"
down_revision = "v0006_flat_growth"


def upgrade() -> None:
    run_sql(op.get_bind(), revision)
