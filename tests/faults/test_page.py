"""docs/faults.md names every fault test, and no other; its table of coverage has tests that exist for every fault."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "faults.md"
COVERED = [f"F{k}" for k in (*range(1, 18), 22, 23, 24, 28, 30)]


def names_of_tests(files: list[Path]) -> set[str]:
    return {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)}


def test_the_page_of_faults_names_every_test_and_no_other() -> None:
    tables = PAGE.read_text().partition("## Coverage")[0]
    own = (Path(__file__), HERE / "test_results.py", HERE / "test_histories.py")
    written = names_of_tests([file for file in HERE.glob("test_*.py") if file not in own])
    assert set(re.findall(r"`(test_\w+)`", tables)) == written


def test_every_fault_is_covered_by_tests_that_exist() -> None:
    coverage = PAGE.read_text().partition("## Coverage")[2]
    rows = dict(re.findall(r"^\| (F\d+) \|.*\| (.*) \|$", coverage, re.M))
    assert list(rows) == COVERED
    written = names_of_tests([*ROOT.glob("tests/**/test_*.py"), ROOT / "src/weft/store/testing.py"])
    named = {fault: set(re.findall(r"`(test_\w+)`", row)) for fault, row in rows.items()}
    assert {fault: names - written for fault, names in named.items() if names - written} == {}
    assert all(named.values())
