"""The soak test: a steady load for half an hour, while memory, connections, files and tables must
stay flat.

    python -m tests.soak --minutes 30

`sampling.py` measures, `trend.py` evaluates (pure). The load is that of the chaos clients, without
faults, and their history is checked too.
"""
