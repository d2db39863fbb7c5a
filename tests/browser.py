"""A real browser for tests of pages: Debian's Chromium, or one that lies where others put it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLACES = (
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/usr/lib/chromium/chromium",
    "/snap/bin/chromium",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


def find_chromium() -> str | None:
    on_path = (shutil.which(name) for name in NAMES)
    return next((place for place in (*PLACES, *on_path) if place and Path(place).is_file()), None)


@contextmanager
def browsing() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    place = find_chromium()
    if place is None:
        pytest.skip("Chromium is not installed; `make setup` installs it as root on Debian, else: apt install chromium")
    flags = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=place, args=[*flags, "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()
