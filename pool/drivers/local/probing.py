"""Readiness of a program that writes no status: the driver probes it, and writes the status for it."""

from __future__ import annotations

import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor

from pool.core.clock import Clock
from pool.core.errors import Transient
from pool.drivers import boundedhttp
from pool.drivers.boundedhttp import HttpCall
from pool.drivers.local.podfile import PodDirectory, Record, replace_file

_PROBE_S = 2.0
# Probes at the same time. Most last a millisecond; programs that do not answer must not delay the others
# for long.
_THREADS = 8


class Prober:
    """Probes pods in the background, each by one thread at a time. Reading and listing never wait for it."""

    def __init__(self, pod_dir: PodDirectory, clock: Clock) -> None:
        self._pod_dir = pod_dir
        self._clock = clock
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="local-probe")
        self._probed: set[str] = set()
        self._lock = threading.Lock()

    def begin(self, record: Record) -> None:
        """Probe a running pod that has no status, unless a probe of it is in progress."""
        with self._lock:
            if record.uid in self._probed:
                return
            self._probed.add(record.uid)
        try:
            self._threads.submit(self._probe, record)
        except RuntimeError:  # the driver was closed
            self._probed.discard(record.uid)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _probe(self, record: Record) -> None:
        call = HttpCall(method="GET", url=f"http://127.0.0.1:{record.port}{record.readiness_path}")
        try:
            status = boundedhttp.status(call, timeout_s=_PROBE_S, clock=self._clock)
            if 200 <= status < 300:
                self._write_status(record)
        except Transient:
            pass  # not ready yet; the next reading of the pod probes again
        finally:
            with self._lock:
                self._probed.discard(record.uid)

    def _write_status(self, record: Record) -> None:
        paths = self._pod_dir.paths(record)
        # Not over the program's own, which is about another port; and not if the pod is gone.
        if not paths.status.exists():
            text = json.dumps({"uid": record.uid, "port": record.port, "ready": True})
            with contextlib.suppress(FileNotFoundError):
                replace_file(paths.status, text)
