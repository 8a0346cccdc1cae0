"""The chaos run: the real system under a seeded schedule of faults, while clients acquire, use, renew and release; afterwards a checker
reads what the clients wrote down and what the journal says.

    python -m tests.chaos --seed 1 --minutes 10

`schedule.py` decides (pure), `faults.py` carries out, `clients.py` are the clients, `checker.py` judges (pure), `report.py` is the page.
"""
