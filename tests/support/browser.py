"""A real Chromium for tests of pages. Without Chromium the tests are skipped locally and fail in
CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
SLOW_MS = 60_000
expect.set_options(timeout=SLOW_MS)


def executable() -> Path:
    """Return the path of Chromium."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    if found is None:
        said = "no Chromium on PATH (on Debian: chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)
    return Path(found)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run one browser, and close it at the end."""
    path = executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(path), args=list(_FLAGS), timeout=SLOW_MS)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class ConsoleEntry:
    """Errors of a page."""

    errors: list[str] = field(default_factory=list)

    def listen(self, page: Page) -> None:
        page.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" else None,
        )
        page.on("pageerror", lambda raised: self.errors.append(str(raised)))


@contextmanager
def opened(
    browser: Browser, *, scheme: str = "light", width: int = 1400, height: int = 900, **more: object
) -> Iterator[tuple[Page, ConsoleEntry]]:
    """Open a new page and collect its errors."""
    context = browser.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": width, "height": height},
        **more,  # type: ignore[arg-type]
    )
    context.set_default_timeout(SLOW_MS)
    page, heard = context.new_page(), ConsoleEntry()
    heard.listen(page)
    try:
        yield page, heard
    finally:
        context.close()
