"""docs/proofs.md names every fault test, and none that does not exist; every fault of the list has a test."""

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "proofs.md"
COVERED = [f"F{k}" for k in (*range(1, 18), 22, 23, 24, 28, 30)]


def names_of_tests(files: list[Path]) -> set[str]:
    return {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)}


def rows() -> list[tuple[str, str]]:
    """The numbers of faults and the tests of each line of the table."""
    part = PAGE.read_text().partition("\n## Faults\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([F\d, ]*) ?\| (`test_.*?`) \| ", part, re.M)


def test_the_page_names_every_test_of_faults_and_none_that_does_not_exist() -> None:
    own = (Path(__file__), HERE / "test_results.py", HERE / "test_histories.py")
    written = names_of_tests([file for file in HERE.glob("test_*.py") if file not in own])
    named = {name for _, tests in rows() for name in re.findall(r"`(test_\w+)`", tests)}
    assert written - named == set()
    assert named - written - names_of_tests([ROOT / "src/weft/store/testing.py"]) == set()


def test_every_fault_of_the_list_has_a_test() -> None:
    numbers = {number for faults, _ in rows() for number in re.findall(r"F\d+", faults)}
    assert numbers == set(COVERED)
