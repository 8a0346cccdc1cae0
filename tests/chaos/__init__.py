"""The chaos run: the real system under a seeded schedule of faults, while clients acquire, use,
renew and release. Afterwards a checker compares what the clients recorded with the journal.

    python -m tests.chaos --seed 1 --minutes 10

`schedule.py` decides (pure), `faults.py` carries out, `clients.py` has the clients, `checker.py`
checks (pure), `report.py` prints the report.
"""
