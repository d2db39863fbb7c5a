"""The page of the specification documents: a row for each name of the committed lists, and a test for each row."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "specification.md"
LISTS = ROOT / "tests" / "data" / "specification"
TITLES = {
    "agent-system": "Agent system ontology",
    "conversations": "Conversation ontology",
    "agent-graph": "Canonical agent DAG schema",
    "ledger": "Agents ledger schema",
    "programs": "Program types architecture",
}
ADDED = "+ "
"""Before the names that Weft has beside those of the documents."""
ROW = re.compile(r"^\| (.+?) \| (specified|added) \| (.+) \| (`tests/[\w/]+\.py::\w+`|not built: .+) \|$")
Row = tuple[str, str, str, str]


def section(title: str) -> str:
    return PAGE.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def lines_of(document: str) -> list[str]:
    """The lines of its tables, without their heads."""
    lines = [line for line in section(TITLES[document]).splitlines() if line.startswith("|")]
    return [line for line in lines if not line.startswith(("| name |", "|---"))]


def rows(document: str) -> list[Row]:
    matches = [ROW.match(line) for line in lines_of(document)]
    return [(match[1], match[2], match[3], match[4]) for match in matches if match is not None]


def names(document: str) -> list[str]:
    return (LISTS / f"{document}.txt").read_text().splitlines()


def named_tests() -> dict[str, set[str]]:
    """By file the tests that the page names."""
    tests: dict[str, set[str]] = {}
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text()):
        tests.setdefault(path, set()).add(name)
    return tests


def functions_of(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.M)) if path.exists() else set()


def test_there_is_a_list_for_each_document() -> None:
    assert {path.stem for path in LISTS.glob("*.txt")} == TITLES.keys()
    assert re.findall(r"^## (.+)$", PAGE.read_text(), re.M) == list(TITLES.values())


@pytest.mark.parametrize("document", TITLES)
def test_every_row_says_where_a_name_is_and_what_shows_it(document: str) -> None:
    assert [line for line in lines_of(document) if ROW.match(line) is None] == []


@pytest.mark.parametrize("document", TITLES)
def test_every_name_of_the_list_has_one_row_and_every_row_a_name(document: str) -> None:
    listed = names(document)
    assert len(listed) == len(set(listed)) > 50
    shown = [f"{ADDED}{name}" if kind == "added" else name for name, kind, _, _ in rows(document)]
    assert shown == listed
    bare = [name for name, *_ in rows(document)]
    assert sorted(bare) == sorted(set(bare))


def test_every_test_that_a_row_names_exists() -> None:
    missing = {
        f"{path}::{name}" for path, wanted in named_tests().items() for name in wanted - functions_of(ROOT / path)
    }
    assert missing == set()
