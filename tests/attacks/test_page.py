"""docs/security.md has a row for every threat, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = dict(re.findall(r"^\| (T\d+) \|(.*)\|$", PAGE, re.M))


def test_every_threat_has_a_row() -> None:
    assert list(ROWS) == [f"T{number}" for number in range(1, 29)]


def test_every_threat_is_shown_by_a_test_or_waits_for_a_part_that_is_named() -> None:
    for name, row in ROWS.items():
        assert "`" in row.rsplit("|", 1)[1] or "not yet: " in row.lower(), name


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:tests/[\w/]+/)?test_\w+\.py)`", PAGE))
    assert len(named) > 20
    folders = {True: ROOT, False: ROOT / "tests" / "attacks"}
    assert {name for name in named if not (folders["/" in name] / name).exists()} == set()


def test_every_attack_is_named_on_the_page() -> None:
    tests = {path.name for path in Path(__file__).parent.glob("test_*.py")} - {Path(__file__).name}
    assert {name for name in tests if name not in PAGE} == set()
