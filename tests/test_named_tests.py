"""Pages that say which test shows what name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
FILES = [*ROOT.rglob("test_*.py"), *(ROOT.parent / "src").rglob("*testing*.py")]
"""The contracts lie with what they are about."""


def names_in(text: str) -> set[str]:
    """Functions by their name; methods by theirs, and with their class before it."""
    found: set[str] = set()
    holder = ""
    for indent, what, name in re.findall(r"^( *)(def|class) (\w+)", text, re.M):
        if what == "class":
            holder = name
        elif name.startswith("test_"):
            found |= {name, f"{holder}.{name}"} if indent else {name}
    return found


@pytest.mark.parametrize("page", ["importing", "proofs", "security"])
def test_every_test_that_the_page_names_exists(page: str) -> None:
    named = set(re.findall(r"`((?:Test\w+\.)?test_\w+)`", (ROOT.parent / "docs" / f"{page}.md").read_text()))
    found = {name for file in FILES for name in names_in(file.read_text())}
    assert len(named) > 5
    assert named - found == set()


def test_every_file_of_tests_that_the_page_of_proofs_names_exists() -> None:
    named = set(re.findall(r"tests/[\w/]+(?:\.py)?", (ROOT.parent / "docs" / "proofs.md").read_text()))
    assert len(named) > 10
    assert {name for name in named if not (ROOT.parent / name).exists()} == set()


def test_a_method_is_known_with_its_class() -> None:
    assert names_in("class TestA:\n    def test_b(self): ...\n\ndef test_c(): ...\n") == {
        "test_b",
        "TestA.test_b",
        "test_c",
    }
