"""The examples of the README and the pages are run, so that they cannot lie.

A fenced Python block is run if the line before it is `<!-- run -->`. The blocks of one page share their names and a
folder of their own, in order.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.credentials import scanner
from tests.postgres import shared_server

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKED = re.compile(r"^<!-- run -->\n+```python\n(.*?)^```$", re.M | re.S)
MARKS = re.compile(r"^<!-- run -->$", re.M)


def examples(page: Path) -> list[tuple[int, str]]:
    """Every marked block with the line it begins at."""
    text = page.read_text()
    return [(text.count("\n", 0, found.start(1)), found[1]) for found in MARKED.finditer(text)]


WITH_EXAMPLES = [page for page in PAGES if page.exists() and examples(page)]


@pytest.mark.slow("the page of inference loads what asks models")
@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.ledger.api.upkeep.load_scanner", scanner)  # its rules are compiled once for all tests
    names: dict[str, Any] = {"__name__": "__main__"}
    if any("postgresql://" in code for _, code in examples(page)):
        monkeypatch.setenv("PGHOST", str(shared_server().folder))
        monkeypatch.setenv("PGUSER", "weft")
    for line, code in examples(page):
        exec(compile("\n" * line + code, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.exists()], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_mark_stands_before_an_example(page: Path) -> None:
    assert len(MARKS.findall(page.read_text())) == len(examples(page))


def test_the_readme_has_an_example_that_runs() -> None:
    if not PAGES[0].read_text().strip():
        pytest.skip("the README is still to be written")
    assert examples(PAGES[0])


def test_a_block_is_run_only_if_it_is_marked(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nno\n```\n\n<!-- run -->\n```python\nx = 1\n```\n<!-- run -->\n\n```python\ny = 2\n```\n"
    )
    assert examples(page) == [(6, "x = 1\n"), (11, "y = 2\n")]
