"""Run the soak test and print the figures; exit code 1 if one of them grows, or a promise was
broken.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos import checker, history
from tests.chaos.faults import Clients
from tests.chaos.running import SETTINGS, WARM, judged_history, say
from tests.chaos.servers import SingleServers
from tests.soak.sampling import sample
from tests.soak.trend import Sample, Trend, trends
from tests.support.system import EVERYTHING, System

EVERY_S = 10.0
# The pass that deletes rows past their retention runs once an hour; here the hour is a minute, and
# so is the retention.
GARBAGE_EVERY_S = 60.0
KEPT_S = 60
CLIENTS = 3
SLACK = {"MiB": 6.0, "threads": 3, "files": 6, "connections": 6, "keys": 20, "rows": 150, "pods": 6}


def soak(minutes: float, folder: Path) -> tuple[list[Sample], list[str]]:
    """The samples, and the problems at the end."""
    settings: dict[str, Any] = {
        **SETTINGS,
        "pool": {**SETTINGS["pool"], "terminal_keep_s": KEPT_S, "journal_keep_s": KEPT_S},
    }
    with ExitStack() as stack:
        url = SingleServers(stack).database_url
        system = stack.enter_context(System(folder, url, settings=settings))
        system.run(*EVERYTHING).wait_idle(WARM["default"], within_s=180)
        clients = Clients(folder, system.redis.url, 1)
        stack.callback(clients.clear)
        for i in range(CLIENTS):
            clients.start(f"client-{i}")
        samples = _watched(system, clients, minutes * 60)
        wrong = [f"{name} did not end" for name in clients.end(90)]
        told = history.read(clients.files)
        seen = judged_history(system, told, frozenset())
        # Claims and grants past their retention are no longer in the table or the journal: only the
        # clients' events can be checked.
        wrong += (
            checker.shared(seen.holds)
            + checker.taken_away(seen.holds, frozenset())
            + checker.turned_away(seen.holds)
        )
        return samples, wrong


def _watched(system: System, clients: Clients, seconds: float) -> list[Sample]:
    began, collected = time.monotonic(), 0.0
    samples: list[Sample] = []
    while (now := time.monotonic() - began) < seconds:
        if now - collected > GARBAGE_EVERY_S:
            collected = now
            system.command("pass", "run", "collect_garbage")
        samples.append((now, sample(system)))
        most = max(v for k, v in samples[-1][1].items() if k.startswith("MiB"))
        say(f"{now:7.0f} of {seconds:.0f} s  {clients.grants()} grants, largest process {most:.0f} MiB")
        threading.Event().wait(max(0.0, EVERY_S - (time.monotonic() - began - now)))
    return samples


def table(found: list[Trend]) -> str:
    lines = [f"{'':26}{'first':>10}{'last':>10}{'mean':>10}{'trend':>10}{'allowed':>10}"]
    for t in found:
        mark = "" if t.flat else "  GROWS"
        lines.append(
            f"{t.name:26}{t.first:10.1f}{t.last:10.1f}{t.mean:10.1f}{t.growth:+10.1f}{t.allowed:10.1f}{mark}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description="A steady load; what must stay flat?"
    )
    parser.add_argument("--minutes", type=float, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="warmpool-soak-") as folder:
        samples, wrong = soak(asked.minutes, Path(folder))
    found = trends(samples, SLACK)
    wrong += [
        f"{t.name} grows: {t.growth:+.1f} where {t.allowed:.1f} is allowed" for t in found if not t.flat
    ]
    print(f"soak  {asked.minutes:g} minutes, {len(samples)} samples; the first {0.4:.0%} are not counted")
    print(table(found))
    print(f"violations {len(wrong)}", *wrong, sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
