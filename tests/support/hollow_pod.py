"""The lifecycle of one pod on a hollow node, in its own thread."""

from __future__ import annotations

import datetime as dt
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import urllib3

from tests.support import hollow_container as container
from tests.support.kube_api import STRATEGIC, ApiClient, ApiError, Object
from tests.support.kube_processes import ServerProcesses

NotAnswered = (ApiError, urllib3.exceptions.HTTPError)
RETRY_S = 0.1
STARTING_PROBE_S = 0.05
RESTART_AFTER_S = 1.0
FOR_EVER_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HollowHost:
    """Resources of a node for its pods."""

    api: ApiClient
    children: ServerProcesses
    root: Path
    missing_images: set[str] = field(default_factory=set)


class HollowPod:
    """Starts with the pod as first seen; `tell` passes each newer state."""

    def __init__(self, host: HollowHost, pod: Object) -> None:
        meta = pod["metadata"]
        self.name: str = meta["name"]
        self.namespace: str = meta["namespace"]
        self.process: subprocess.Popen[bytes] | None = None
        self._host = host
        self._uid: str = meta["uid"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._place = host.root / self._uid
        self._pod = pod
        self._address = _free_address(container.port(pod))
        self._began = ""
        self._restarts = 0
        self._killed_for_memory = False
        self._reported: Object = {}
        self._ends_by_s: float | None = None
        self._told = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"pod-{self.name}", daemon=True)
        self._thread.start()

    def tell(self, pod: Object) -> None:
        """Set the newest state of the pod."""
        self._pod = pod
        self._told.set()

    def abandon(self) -> None:
        """The pod was deleted, or the kubelet stops: kill its process."""
        self._abandoned.set()
        self._told.set()

    def join(self) -> None:
        self._thread.join(timeout=20)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill_for_memory(self) -> None:
        """Kill its process as the kernel does when memory is short."""
        self._killed_for_memory = True
        self.signal(signal.SIGKILL)

    def signal(self, what: signal.Signals) -> None:
        assert self.process is not None
        container.signal_if_alive(self.process, what)

    def _live(self) -> None:
        self._place.mkdir()
        try:
            while (launch := self._prepare()) is not None:
                self._run(launch)
                if not self._starts_again():
                    break
            self._wait_until(self._is_told_to_end)
            self._leave()
        finally:
            if self.process is not None:
                self._host.children.kill(self.process)
            shutil.rmtree(self._place, ignore_errors=True)

    def _prepare(self) -> container.Launch | None:
        """Wait for everything that the pod needs, then return what to start; None if the pod is
        deleted before.
        """
        while not self._is_told_to_end():
            image = self._pod["spec"]["containers"][0]["image"]
            try:
                if image not in self._host.missing_images:
                    return container.prepare(self._pod, self._address, self._place, self._secret)
                self._report_waiting("ErrImagePull", f"{image}: not found")
                self._report_waiting("ImagePullBackOff", f'Back-off pulling image "{image}"')
            except container.NotYet as exc:
                self._report_waiting(exc.reason, str(exc))
            except NotAnswered:
                pass
            self._wait(RETRY_S)
        return None

    def _run(self, launch: container.Launch) -> None:
        """Run its process from start to end."""
        self._began, self._killed_for_memory = _now(), False
        log = self._place / "log"
        process = self.process = self._host.children.start(launch.argv, log=log, env=launch.env)
        threading.Thread(target=self._tell_end_of, args=(process,), daemon=True).start()
        ready, was_ready, failures, probe_at_s = False, False, 0, 0.0
        self._report_running(ready=ready)
        while process.poll() is None and not self._abandoned.is_set():
            now_s = time.monotonic()
            self._end_if_told(process, now_s)
            if now_s >= probe_at_s:
                passed = container.passes_probe(self._pod, self._address)
                failures = 0 if passed else failures + 1
                if passed or failures >= self._probe("failureThreshold", 3):
                    ready = passed
                self._report_running(ready=ready)
                period_s = (
                    self._probe("periodSeconds", 10) if "readinessProbe" in self._container else FOR_EVER_S
                )
                was_ready = was_ready or ready
                probe_at_s = now_s + (period_s if was_ready else STARTING_PROBE_S)
            self._wait(min(probe_at_s, self._ends_by_s or probe_at_s) - time.monotonic())
        self._host.children.kill(process)
        if not self._abandoned.is_set():
            self._report_ended(process)

    def _end_if_told(self, process: subprocess.Popen[bytes], now_s: float) -> None:
        """Send SIGTERM on deletion and SIGKILL at the end of the grace period. A later delete may
        only shorten it.
        """
        grace_s = self._pod["metadata"].get("deletionGracePeriodSeconds")
        if grace_s is None:
            return
        if self._ends_by_s is None:
            self._ends_by_s = now_s + grace_s
            container.signal_if_alive(process, signal.SIGTERM)
        self._ends_by_s = min(self._ends_by_s, now_s + grace_s)
        if now_s >= self._ends_by_s:
            container.signal_if_alive(process, signal.SIGKILL)

    def _starts_again(self) -> bool:
        policy = self._pod["spec"].get("restartPolicy", "Always")
        assert self.process is not None
        failed = self.process.returncode != 0
        again = policy == "Always" or (policy == "OnFailure" and failed)
        if self._is_told_to_end() or not again:
            return False
        self._restarts += 1
        self._report_waiting("CrashLoopBackOff", "back-off restarting failed container")
        ends_s = time.monotonic() + RESTART_AFTER_S
        self._wait_until(lambda: self._is_told_to_end() or time.monotonic() > ends_s)
        return True

    def _leave(self) -> None:
        """Remove the pod, now that nothing of it runs."""
        while not self._abandoned.is_set():
            try:
                self._host.api.delete(self._path, grace_s=0, uid=self._uid)
            except ApiError as exc:
                if exc.code in (404, 409):
                    return
            except urllib3.exceptions.HTTPError:
                pass
            else:
                return
            self._wait(RETRY_S)

    def _is_told_to_end(self) -> bool:
        return self._abandoned.is_set() or "deletionTimestamp" in self._pod["metadata"]

    def _wait(self, seconds: float) -> None:
        self._told.wait(max(seconds, 0.0))
        self._told.clear()

    def _wait_until(self, check: Callable[[], bool]) -> None:
        while not check():
            self._wait(RESTART_AFTER_S)

    def _tell_end_of(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._told.set()

    def _secret(self, name: str) -> Mapping[str, str] | None:
        found = self._host.api.find(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        return None if found is None else found.get("data", {})

    @property
    def _container(self) -> Object:
        found: Object = self._pod["spec"]["containers"][0]
        return found

    def _probe(self, key: str, default: int) -> int:
        return int(self._container.get("readinessProbe", {}).get(key, default))

    def _report_waiting(self, reason: str, message: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        self._report("Pending" if self._restarts == 0 else "Running", waiting, ready=False)

    def _report_running(self, *, ready: bool) -> None:
        self._report("Running", {"running": {"startedAt": self._began}}, ready=ready)

    def _report_ended(self, process: subprocess.Popen[bytes]) -> None:
        code = container.exit_code(process)
        reason = "OOMKilled" if self._killed_for_memory else "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "startedAt": self._began, "finishedAt": _now()}
        self._report("Succeeded" if code == 0 else "Failed", {"terminated": ended}, ready=False)

    def _report(self, phase: str, state: Object, *, ready: bool) -> None:
        """Report a status to the API server until it is accepted; skip an unchanged one."""
        saying = {"phase": phase, "state": state, "ready": ready, "restarts": self._restarts}
        if saying == self._reported:
            return
        status = self._status(phase, state, ready=ready)
        while not self._abandoned.is_set():
            try:
                content = {"metadata": {"uid": self._uid}, "status": status}
                self._host.api.patch(f"{self._path}/status", content, kind=STRATEGIC)
            except ApiError as exc:
                # Deleted, or another pod of that name.
                if exc.code in (404, 409):
                    return
                self._abandoned.wait(RETRY_S)
            except urllib3.exceptions.HTTPError:
                self._abandoned.wait(RETRY_S)
            else:
                self._reported = saying
                return

    def _status(self, phase: str, state: Object, *, ready: bool) -> Object:
        spoken, now = str(ready), _now()
        conditions = [{"type": "Initialized", "status": "True", "lastTransitionTime": now}] + [
            {"type": kind, "status": spoken, "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ]
        image = self._container["image"]
        status = {
            "name": self._container["name"], "image": image, "imageID": image, "restartCount": self._restarts,
            "ready": ready, "started": "running" in state, "state": state,
        }  # fmt: skip
        where = {"hostIP": "127.0.0.1", "podIP": self._address, "podIPs": [{"ip": self._address}]}
        return {
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": [status],
            **({} if "waiting" in state and phase == "Pending" else where),
        }


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _free_address(port: int) -> str:
    """Return a loopback address on which that port is free."""
    for _ in range(1000):
        address = ".".join(["127", *(str(random.randint(1, 254)) for _ in range(3))])
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return address
    raise RuntimeError(f"no address of the loopback has port {port} free: are all of them in use?")
