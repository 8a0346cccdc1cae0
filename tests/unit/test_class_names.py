"""No name is used for two classes of the tree."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("pool", "tasks", "bench", "tests")
# Clocks that a test moves by hand. Each is a few lines of what its own test needs.
EXCEPTIONS = {"HandClock"}


def test_no_class_name_is_used_for_two_classes() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"^\s*class (\w+)[(:]", path.read_text(), re.MULTILINE):
                places[name].append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in EXCEPTIONS}
    assert twice == {}
