"""One browser for the tests of a module: while it is open an event loop runs, which tests of others must not meet."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import browsing

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with browsing() as opened:
        yield opened
