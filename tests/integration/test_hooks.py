"""What the YAML hook of `.pre-commit-config.yaml` accepts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def accepts(*files: Path) -> bool:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    (hook,) = (hook for hook in local["hooks"] if hook["id"] == "yaml")
    done = subprocess.run(
        [sys.executable, *shlex.split(hook["entry"])[1:], *map(str, files)], capture_output=True
    )
    return done.returncode == 0


def test_yaml_hook_accepts_every_file_of_the_tree_and_no_invalid_one(tmp_path: Path) -> None:
    kept = [p for d in ("charts", "deploy", "pool", "tests") for p in (ROOT / d).rglob("*.y*ml")]
    plain = [p for p in kept if "templates" not in p.parts]
    assert len(plain) > 10
    assert accepts(*plain, ROOT / "docker-compose.yml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\nb: 2\n")
    assert not accepts(broken)
