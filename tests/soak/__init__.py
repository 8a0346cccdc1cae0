"""The soak: a steady load for half an hour, while memory, connections, files and tables must stay flat.

    python -m tests.soak --minutes 30

`sampling.py` measures, `trend.py` judges (pure). The load is the clients of the chaos run, without faults, and their history is checked too.
"""
