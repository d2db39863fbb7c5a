"""Pages that say which test shows what name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent


@pytest.mark.parametrize("page", ["erasing", "secrets"])
def test_every_test_that_the_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT.parent / "docs" / f"{page}.md").read_text()))
    found = {
        name for file in ROOT.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(named) > 5
    assert named <= found
