"""What the client imports, and when: a service pays for a part only if it uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Slow to import, and no part of a client for threads that has not connected yet.
HEAVY = ("redis", "asyncio", "ssl", "http.client", "urllib.request", "celery", "requests", "opentelemetry")


def new_modules(before: str, then: str) -> set[str]:
    """Return the modules that `then` imports after `before`, in a fresh interpreter."""
    code = f"import sys\n{before}\nknown = set(sys.modules)\n{then}\nprint(*set(sys.modules) - known)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    # In the distribution `pool.client` is named `warmpool`.
    new = new_modules("import __future__, importlib, typing", "import pool.client")
    assert new <= {"pool", "pool.client"}


@pytest.mark.parametrize("name", ["Pool", "Refused", "Worker"])
def test_importing_a_name_for_threads_imports_nothing_heavy(name: str) -> None:
    new = new_modules("", f"from pool.client import {name}")
    assert new.isdisjoint(HEAVY), sorted(new & set(HEAVY))


def test_importing_the_names_for_asyncio_imports_no_redis() -> None:
    assert new_modules("", "from pool.client import AsyncPool").isdisjoint(
        {"redis", "requests", "opentelemetry"}
    )


def test_using_the_client_imports_only_redis_besides_the_standard_library() -> None:
    # redis imports OpenTelemetry by itself, if it is installed.
    use = "from warmpool.testing import FakePool\nwith FakePool() as p, p.acquire('acme') as w: w.auth, p.run"
    tops = {name.partition(".")[0] for name in new_modules("import redis, redis.asyncio", use)}
    assert tops - {"pool", "warmpool"} <= sys.stdlib_module_names
