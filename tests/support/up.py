"""Run `warmpool up` as a user does: one command, everything real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from pool.core.clock import SystemClock
from pool.ops.up import components, postgres
from pool.ops.up.datadir import DataDir
from pool.ops.up.hosting import Host
from pool.ops.up.processes import stop_all, writers_to
from pool.store import connect, journal, orgs
from tests.support import forking
from tests.support.system import ROOT, as_toml, clear_pods, held_twice
from tests.support.waiting import eventually

READY_LIMIT_S = 240.0
# The example of the welcome text, for machines without curl.
USE = (
    "import os, urllib.request as u; "
    "head = dict(line.split('\"')[1].split(': ', 1) for line in open(os.environ['WARMPOOL_CURL_CONFIG'])); "
    "print(u.urlopen(u.Request(os.environ['WARMPOOL_ENDPOINT'] + '/echo', headers=head), timeout=20).read().decode())"
)


class Up:
    """Runs of `warmpool up` on one data directory, and commands beside them."""

    def __init__(self, folder: Path, *words: str) -> None:
        """`words` are arguments of every run."""
        self.place = DataDir.open(folder)
        self.words = words
        self.config = folder / "warmpool.toml"
        self.config.write_text(as_toml({"profiles": {"default": {"warm_target": 2}}}))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")}
        self.process: subprocess.Popen[bytes] | None = None
        self.runs = 0

    def start(self, *words: str) -> None:
        self.runs += 1
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pool.ops.cli", "--config", str(self.config), "up", "--data-dir", str(self.place.root), *self.words, *words],
                cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.says("the pool is ready")

    @property
    def output(self) -> Path:
        return self.place.root / f"up-{self.runs}.out"

    def said(self) -> str:
        return self.output.read_text()

    def says(self, text: str, times: int = 1) -> None:
        assert self.process is not None
        process = self.process
        eventually(
            lambda: self.said().count(text) >= times or process.poll() is not None,
            within_s=READY_LIMIT_S,
            every_s=0.1,
        )
        assert self.said().count(text) >= times, self.said()

    def signal(self, sig: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(sig)
        return self.process.wait(timeout=60)

    def pids(self) -> dict[str, int]:
        return {name: entry.ref.pid for name, entry in self.place.read_record().items()}

    def broker_url(self) -> str:
        return self.place.broker_url.read_text()

    def command(self, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        env = self.env | {"WARMPOOL_DATA_DIR": str(self.place.root)}
        done = forking.run(["--config", str(self.config), *words], env=env, cwd=self.place.root)
        assert done.returncode in ok, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def wrongs(self) -> list[str]:
        with self._database() as url, closing(connect(url)) as store, store.snapshot() as tx:
            entries = journal.since(tx, limit=1_000_000)
            return orgs.miscounted(tx) + journal.disagreements(tx) + held_twice(entries)

    @contextlib.contextmanager
    def _database(self) -> Iterator[str]:
        """The pool's own Postgres: the running one, else one that is started for this read."""
        if self.place.database_url.exists():
            yield self.place.database_url.read_text()
            return
        database = postgres.prepare(self.place)
        component = components.embedded_postgres(self.place, database)
        host = Host(self.place, [component], os.environ, SystemClock())
        assert host.start("postgres") is None
        eventually(lambda: host.heard() == ["postgres"], within_s=30)
        try:
            yield database.url
        finally:
            host.send("postgres", component.stop_signal)
            eventually(host.exits, within_s=30)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.signal(signal.SIGINT)
            self.process.kill()
            self.process.wait()
        stop_all(dict.fromkeys(writers_to(self.place.logs), signal.SIGTERM), grace_s=5, clock=SystemClock())
        clear_pods(self.place.local)
