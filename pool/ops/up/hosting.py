"""The processes of the components: start, take over, check, signal and record them."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from pool.core.clock import Clock
from pool.drivers.local.processref import ProcessRef
from pool.ops.up.components import Component, sign_of_life
from pool.ops.up.datadir import DataDir, Recorded
from pool.ops.up.processes import Exit, Process

# Interval between checks of a healthy component. A component that is starting is checked on every tick.
_ASK_AGAIN_S = 2.0
_CANNOT_EXECUTE = 127


class Host:
    """The running components, also recorded on disk, so that the next supervisor finds them."""

    def __init__(
        self, data_dir: DataDir, components: Iterable[Component], env: Mapping[str, str], clock: Clock
    ) -> None:
        self._data_dir = data_dir
        self._components = {component.name: component for component in components}
        self._env = env
        self._clock = clock
        self._running: dict[str, Process] = {}
        self._signs: dict[str, object] = {}
        self._asked_at: dict[str, float] = {}

    def start(self, name: str) -> Exit | None:
        """Start a component; return an Exit if it could not be executed (the reason is in its log)."""
        component = self._components[name]
        log = self._data_dir.log(name)
        self._forget(name)
        try:
            process = Process.launch(
                component.argv,
                env=self._environment(component),
                log=log,
                folder=component.folder,
                account=component.account,
            )
        except OSError as exc:
            with log.open("a") as output:
                output.write(f"cannot execute {component.argv[0]}: {exc.strerror}\n")
            return Exit(code=_CANNOT_EXECUTE)
        self._running[name] = process
        self._write_record()
        return None

    def adopt(self, name: str, ref: ProcessRef) -> None:
        """Take over a running component."""
        self._running[name] = Process(ref=ref)
        self._write_record()

    def send(self, name: str, sig: signal.Signals) -> None:
        """Send a signal to a component, if it runs."""
        if name in self._running:
            self._running[name].send(sig)

    def pid(self, name: str) -> int | None:
        """Return the pid of a component; None if it does not run."""
        return self._running[name].ref.pid if name in self._running else None

    def adopted(self, name: str) -> bool:
        """Return whether a component was started by an earlier run."""
        return name in self._running and self._running[name].child is None

    def exits(self) -> dict[str, Exit]:
        """Return the components that have ended since the last call."""
        ended = {name: how for name, process in self._running.items() if (how := process.exit())}
        for name in ended:
            del self._running[name]
            self._forget(name)
        if ended:
            self._write_record()
        return ended

    def heard(self) -> list[str]:
        """Return the components with a new sign of health since the last call."""
        now = self._clock.monotonic()
        return [name for name in self._running if self._due(name, now) and self._has_new_sign(name, now)]

    def forget_all(self) -> None:
        """Remove ready files, published URLs and the record; called when nothing runs any more."""
        for name, component in self._components.items():
            self._forget(name)
            if component.published:
                component.published.path.unlink(missing_ok=True)
        self._write_record()

    def log(self, name: str) -> Path:
        return self._data_dir.log(name)

    def _due(self, name: str, now: float) -> bool:
        return name not in self._signs or now - self._asked_at.get(name, now) >= _ASK_AGAIN_S

    def _has_new_sign(self, name: str, now: float) -> bool:
        self._asked_at[name] = now
        sign = sign_of_life(self._components[name].readiness)
        if sign is None or sign == self._signs.get(name):
            return False
        self._signs[name] = sign
        return True

    def _forget(self, name: str) -> None:
        """Remove the signs of health of an earlier process, so that they do not count for a new one."""
        self._signs.pop(name, None)
        self._data_dir.ready_file(name).unlink(missing_ok=True)

    def _environment(self, component: Component) -> Mapping[str, str]:
        """Return the environment of a component; under another account without ours, which may contain
        secrets."""
        return component.env if component.account else {**self._env, **component.env}

    def _write_record(self) -> None:
        self._data_dir.write_record(
            {
                name: Recorded(ref=process.ref, fingerprint=self._components[name].fingerprint)
                for name, process in self._running.items()
            }
        )
