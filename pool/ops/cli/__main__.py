"""`python -m pool.ops.cli`: the `warmpool` command without its script."""

from __future__ import annotations

from pool.ops.cli.app import main

main()
