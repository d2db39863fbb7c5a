"""One browser for the tests of a module: while it is open an event loop runs, which tests of others must not meet."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import browsing
from tests.conftest import PROVING

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A property grows under WEFT_PROVE, so `-m prove` takes them all."""
    for item in items:
        if (
            PROVING
            and "exporters" in item.path.parts
            and getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        ):
            item.add_marker("prove")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with browsing() as opened:
        yield opened
