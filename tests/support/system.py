"""A real deployment for tests: a broker, a database, and the pool's own processes, which a test may
kill, freeze, stop or restart. Checks that nothing of it is left behind.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from celery import Celery
from celery.result import AsyncResult
from sqlalchemy import func, select, update

from pool import config
from pool.client import Pool, Worker
from pool.core.clock import SystemClock
from pool.core.errors import PoolError
from pool.core.ids import new_task_id
from pool.core.names import ENV_READY_FILE
from pool.core.settings import PoolSettings, Settings
from pool.core.signing import INTERNAL_HEADER, Asked
from pool.core.states import State
from pool.drivers.local.driver import LocalDriver
from pool.ops.up.ports import free_port
from pool.store import Store, connect, journal, orgs, schema
from pool.store.journal import Entry
from tasks.routes import ROUTES
from tests.support import forking
from tests.support.clock_skew import skewed
from tests.support.leftovers import processes_about
from tests.support.redis_server import RedisServer
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
ROLES = {"beat": ["beat"], "exporter": ["exporter"]}
EVERYTHING = ("acquire", "fleet", "bind", "passes", "beat")
START_LIMIT_S = 90.0
PATIENCE_S = 60.0
TAIL_LINES = 25
# Pause between two cycles of one thread of a load; faster cycles only use up the machine.
LOAD_PAUSE_S = 0.25
# The smallest budgets that nest, so that timeouts end soon.
SMALL_BUDGETS: dict[str, Any] = {
    "pod_ready_limit_s": 30,
    "spawn_budget_s": 30,
    "stuck_cutoff_s": 40,
    "activation_budget_s": 5,
    "activation_heartbeat_s": 1,
    "activation_stuck_s": 3,
    "activation_tries": 2,
    "call_timeout_s": 5,
    "visibility_timeout_s": 70,
    "fleet_threads": 8,
    "bind_threads": 8,
}


class SystemPart:
    """One process of a deployment; it keeps its log over restarts."""

    def __init__(self, name: str, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.metrics_port = int(env.get("WARMPOOL_METRICS_PORT", "0"))
        self.log_file = folder / "logs" / f"{name}.log"
        self._ready_file = folder / "run" / f"{name}.ready"
        self.env = {**env, ENV_READY_FILE: str(self._ready_file)}
        self._folder = folder
        # Where its code is; another version's may be elsewhere.
        self.tree = ROOT
        self._process: forking.ForkedProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        role = self.name.partition("-")[0]
        words = ROLES.get(role) or ["worker", role]
        self._ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = forking.start(
                words, env=self.env, cwd=self._folder, log=log.fileno(), tree=self.tree
            )

    def wait_ready(self) -> None:
        eventually(lambda: self._ready_file.exists() or not self.alive(), within_s=START_LIMIT_S)
        assert self._ready_file.exists(), f"{self.name} ended with {self.exit_code()}:\n{self.tail()}"

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def send(self, sig: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill it as in a crash."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait(timeout=30)

    def terminate(self, within_s: float = 60.0) -> int:
        """Send SIGTERM; return its exit code."""
        self.send(signal.SIGTERM)
        return self.ends(within_s)

    def ends(self, within_s: float = 60.0) -> int:
        """Wait for its end; return its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=within_s)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it: it exists and does nothing."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def tail(self) -> str:
        lines = self.log().splitlines()[-TAIL_LINES:]
        return "\n".join(f"  {self.name} | {line}" for line in lines)


class System:
    """One deployment in one folder. `settings` are the tables of its warmpool.toml; pool settings
    default to the smallest that nest.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str,
        *,
        settings: Mapping[str, Any] | None = None,
        redis: RedisServer | None = None,
        broker_url: str = "",
        measured: bool = False,
    ) -> None:
        """`redis` is a server of the test, not yet started; `broker_url` is the URL for the
        processes, if it differs.
        """
        self.folder = folder
        self._measured = measured
        for place in (folder, folder / "logs", folder / "run"):
            place.mkdir(mode=0o700, exist_ok=True)
        self.redis = redis or RedisServer(appendonly=True)
        self.database_url = database_url
        self.config = folder / "warmpool.toml"
        self.configure(settings or {})
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("WARMPOOL_")},
            "WARMPOOL_CONFIG": str(self.config),
            "WARMPOOL_DATA_DIR": str(folder),
            "WARMPOOL_DATABASE_URL": self.database_url,
            "WARMPOOL_BROKER_URL": broker_url or self.redis.url,
        }
        # Where the code of parts that are made from here on is.
        self.tree = ROOT
        self.parts: dict[str, SystemPart] = {}
        self.store: Store = connect(self.database_url, connections=5)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Set variables for processes that start from here on."""
        self.config.write_text(as_toml({**settings, "pool": {**SMALL_BUDGETS, **settings.get("pool", {})}}))

    # What runs.

    def __enter__(self) -> Self:
        try:
            self.redis.start()
            self.command("migrate")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, *names: str) -> Self:
        """Start these processes (a second one of a role is named role-2) and wait until each is
        ready.
        """
        for name in names:
            if name not in self.parts:
                port = {"WARMPOOL_METRICS_PORT": str(free_port())} if self._measured else {}
                self.parts[name] = SystemPart(name, self.folder, {**self.env, **port})
                self.parts[name].tree = self.tree
            self.parts[name].start()
        for name in names:
            self.parts[name].wait_ready()
        return self

    def mend(self) -> Self:
        """Start processes that a test has ended, also after a test that failed in between."""
        if not self.redis.running:
            self.redis.start()
        self.run(*[name for name, part in self.parts.items() if not part.alive()])
        return self

    def skew(self, name: str, seconds: float) -> SystemPart:
        """Restart this process with a wall clock that is off by `seconds`; 0 corrects it."""
        if name in self.parts and self.parts[name].alive():
            self.parts[name].terminate()
        self.parts[name] = SystemPart(name, self.folder, skewed(self.env, seconds))
        self.run(name)
        return self.parts[name]

    def restart(self) -> Self:
        """Stop all processes in order and start them again, as after a change of configuration."""
        for part in self.parts.values():
            part.send(signal.SIGTERM)
        for part in self.parts.values():
            part.ends()
        return self.mend()

    def __getitem__(self, name: str) -> SystemPart:
        return self.parts[name]

    def command(self, *words: str, ok: Sequence[int] = (0,), env: Mapping[str, str] | None = None) -> str:
        """Run a `warmpool` command on this deployment; return its output."""
        done = forking.run(words, env={**self.env, **(env or {})}, cwd=self.folder)
        assert done.returncode in ok, (
            f"warmpool {' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}"
        )
        return done.stdout

    def close(self) -> None:
        """Stop everything, and check it."""
        for part in self.parts.values():
            part.kill()
        clear_pods(self.folder / "local")
        self.store.close()
        self.redis.close()
        left = processes_about(self.folder)
        assert not left, f"left running: {left}"

    # What is there.

    @property
    def metrics_ports(self) -> dict[str, int]:
        """Return where each process serves its metrics, if they are `measured`."""
        return {name: part.metrics_port for name, part in self.parts.items()}

    def count(self, *states: State, profile: str = "default") -> int:
        W = schema.workers
        with self.store.read() as tx:
            found = select(func.count()).select_from(W).where(W.c.profile == profile, W.c.state.in_(states))
            return int(tx.execute(found).scalar_one())

    def wait_idle(self, count: int, *, profile: str = "default", within_s: float = 60.0) -> None:
        """Wait until `count` workers are warm; on failure show the logs of the processes."""
        try:
            eventually(
                lambda: self.count(State.IDLE, profile=profile) >= count, within_s=within_s, every_s=0.1
            )
        except AssertionError as exc:
            warm = self.count(State.IDLE, profile=profile)
            raise AssertionError(f"{warm} of {count} {profile} workers are warm\n{self.tails()}") from exc

    def live_claims(self, *, org: str | None = None) -> list[str]:
        C = schema.claims
        found = select(C.c.id).where(C.c.ended_at.is_(None))
        with self.store.read() as tx:
            return list(tx.execute(found if org is None else found.where(C.c.org == org)).scalars())

    def claim(self, claim_id: str) -> Any:
        with self.store.read() as tx:
            return tx.execute(select(schema.claims).where(schema.claims.c.id == claim_id)).one()

    def shift_clock(self, seconds: float) -> None:
        """Advance the database's clock."""
        with self.store.write() as tx:
            tx.execute(update(schema.clock).values(shift_s=schema.clock.c.shift_s + seconds))

    def entries(self) -> list[Entry]:
        """Return the whole journal."""
        with self.store.read() as tx:
            return journal.since(tx, limit=10_000_000)

    def wrongs(self) -> list[str]:
        """Return violated invariants: exclusive holds, counters, a journal that replays to the
        table.
        """
        with self.store.snapshot() as tx:
            found = orgs.miscounted(tx) + journal.disagreements(tx)
            entries = journal.since(tx, limit=10_000_000)
        return found + held_twice(entries)

    def tails(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(part.tail() for part in self.parts.values())


class Service:
    """A service that has only a URL and the names of the tasks."""

    def __init__(self, url: str) -> None:
        self.app = Celery("service", broker=url, backend=url, set_as_current=False)

    def send(self, task: str, /, *args: Any, **kwargs: Any) -> AsyncResult[Any]:
        return self.app.send_task(f"pool.{task}", args=args, kwargs=kwargs, queue="acquire")

    def call(self, task: str, /, *args: Any, **kwargs: Any) -> Any:
        return self.send(task, *args, **kwargs).get(timeout=PATIENCE_S)

    def granted(self, org: str, **kwargs: Any) -> dict[str, Any]:
        answer = self.call("acquire", org=org, **{"wait_s": 20, **kwargs})
        assert answer["outcome"] == "granted", answer
        return dict(answer)

    def close(self) -> None:
        self.app.close()


class Insider(Service):
    """A sender with the master key, which can send internal tasks."""

    def __init__(self, system: System) -> None:
        super().__init__(system.redis.url)
        own = Settings(pool=PoolSettings(data_dir=str(system.folder)))
        self._signs = config.keyring(own).internal_tasks()

    def order(self, task: str, /, headers: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Run an internal task."""
        task_id = new_task_id()
        asked = Asked(task=task, task_id=task_id, address="", args=(), kwargs=kwargs)
        signed = {**(headers or {}), INTERNAL_HEADER: self._signs.sign(asked)}
        self.app.send_task(
            task, kwargs=kwargs, task_id=task_id, queue=ROUTES[task], headers=signed, ignore_result=True
        )


class Load:
    """Threads of one client that acquire and release repeatedly, and detect two holders of one
    worker.
    """

    def __init__(
        self,
        url: str,
        *,
        orgs: Sequence[str] = ("load",),
        threads: int = 4,
        lease_s: int = 30,
        org_key: str | None = None,
    ) -> None:
        self.pool = Pool(url, name="load", org_key=org_key)
        self.cycles = 0
        self.troubles: Counter[str] = Counter()
        self.held_twice: list[str] = []
        self._holders: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(orgs[i % len(orgs)], lease_s), daemon=True)
            for i in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self.pool.close()
        assert not self.held_twice

    def goes_on(self, cycles: int = 20, within_s: float = PATIENCE_S) -> None:
        """Wait for `cycles` more acquires that were granted and released."""
        goal = self.cycles + cycles
        eventually(lambda: self.cycles >= goal, within_s=within_s)

    def _run(self, org: str, lease_s: int) -> None:
        while not self._stop.is_set():
            try:
                worker = self.pool.acquire(org, wait_s=10, lease_s=lease_s)
                self._took(worker)
                self._gave_up(worker)
                worker.release()
                self.cycles += 1
            except PoolError as exc:
                self.troubles[type(exc).__name__] += 1
            self._stop.wait(LOAD_PAUSE_S)

    def _took(self, worker: Worker) -> None:
        with self._lock:
            if other := self._holders.get(worker.worker_id):
                self.held_twice.append(f"{worker.worker_id}: {worker.claim_id} and {other}")
            self._holders[worker.worker_id] = worker.claim_id

    def _gave_up(self, worker: Worker) -> None:
        with self._lock:
            if self._holders.get(worker.worker_id) == worker.claim_id:
                del self._holders[worker.worker_id]


def held_twice(entries: Sequence[Entry]) -> list[str]:
    """Return where the journal shows a worker with two holders: a claim that takes a worker from
    another without the release in between, a claim that begins without a new epoch, or one that is
    on two workers.
    """
    found: list[str] = []
    last: dict[str, tuple[str | None, int]] = {}
    worker_of: dict[str, str] = {}
    for e in entries:
        holder, epoch = last.get(e.worker_id, (None, -1))
        if holder is not None and e.claim_id is not None and e.claim_id != holder:
            found.append(f"{e.worker_id}: entry {e.id} gives it to {e.claim_id} while {holder} holds it")
        if e.claim_id is not None and e.claim_id != holder:
            if e.epoch <= epoch:
                found.append(
                    f"{e.worker_id}: entry {e.id} gives it to {e.claim_id} at epoch {e.epoch}, after {epoch}"
                )
            before = worker_of.setdefault(e.claim_id, e.worker_id)
            if before != e.worker_id:
                found.append(f"{e.claim_id}: entry {e.id} puts it on {e.worker_id}, it was on {before}")
        last[e.worker_id] = (e.claim_id, e.epoch)
    return found


def clear_pods(root: Path) -> None:
    """Delete all local pods in a folder, and wait until they are gone."""
    if not root.exists():
        return
    driver = LocalDriver(root, clock=SystemClock(), call_timeout_s=10)
    try:

        def gone() -> bool:
            pods = driver.list().pods
            for pod in pods:
                driver.delete(pod.name, pod.uid, grace_s=0)
            return not pods

        eventually(gone, within_s=60, every_s=0.1)
    finally:
        driver.close()


def as_toml(tables: Mapping[str, Any]) -> str:
    """Return `{"pool": {…}, "profiles": {"default": {…}}}` as TOML; deeper tables are written
    inline.
    """
    lines: list[str] = []
    for name, table in tables.items():
        plain = {k: v for k, v in table.items() if not (name != "pool" and isinstance(v, dict))}
        lines += [f"[{name}]", *(f"{k} = {_inline(v)}" for k, v in plain.items())]
        for key, values in table.items():
            if key not in plain:
                lines += [f"[{name}.{key}]", *(f"{k} = {_inline(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)
