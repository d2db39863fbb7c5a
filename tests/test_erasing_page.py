"""docs/erasing.md names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT.parent / "docs" / "erasing.md").read_text()))
    found = {
        name for file in ROOT.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M)
    }
    assert len(named) > 5
    assert named <= found
