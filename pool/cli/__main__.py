"""`python -m pool.cli`: the command without its script."""

from __future__ import annotations

from pool.cli.app import main

main()
