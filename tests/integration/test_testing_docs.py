"""The code of docs/testing.md, as a reader would run it: in a project of its own, with the plugin."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "testing.md").read_text(), re.M | re.S)
# A checkout whose environment is older than the plugin has no entry point for it.
PLUGIN = tomllib.loads((ROOT / "clientdist" / "pyproject.toml").read_text())["project"]["entry-points"]


def pytest_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys, pytest\n"
        "from importlib.metadata import entry_points\n"
        "loaded = [e for e in entry_points(group='pytest11') if e.name == 'warmpool']\n"
        "more = [] if loaded else ['-p', 'warmpool.pytest_plugin']\n"
        "sys.exit(pytest.main([*more, *sys.argv[1:]]))"
    )
    return subprocess.run(
        [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", *words],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip


def test_the_examples_with_a_fake_pool_pass(tmp_path: Path) -> None:
    fake, together, asynchronous, real = BLOCKS
    assert "warmpool_pool" in real
    (tmp_path / "test_fake.py").write_text(fake)
    (tmp_path / "test_together.py").write_text(together)
    (tmp_path / "test_async.py").write_text(asynchronous)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = pytest_run(tmp_path)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_the_example_with_a_real_pool_fails_with_a_sentence_if_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "test_real.py").write_text(BLOCKS[-1])
    (tmp_path / "pytest.ini").write_text("[pytest]\nwarmpool_command = /there/is/no/such/warmpool\n")
    done = pytest_run(tmp_path)
    assert done.returncode == 1
    assert "needs the command `warmpool`: install warmpool-server[embedded]" in done.stdout


def test_the_plugin_costs_nothing_until_it_is_used(tmp_path: Path) -> None:
    assert PLUGIN == {"pytest11": {"warmpool": "warmpool.pytest_plugin"}}
    code = (
        "import sys, pytest, pool.client.pytest_plugin\n"
        "print([m for m in sys.modules if m.startswith('pool.') or m in ('redis', 'asyncio')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert eval(done.stdout) == ["pool.client", "pool.client.pytest_plugin"], done.stderr
