"""docs/faults.md names every fault test, and no other."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "faults.md"


def test_the_page_of_faults_names_every_test_and_no_other() -> None:
    tables = PAGE.read_text().partition("## Results")[0]
    files = [file.read_text() for file in HERE.glob("test_*.py") if file != Path(__file__)]
    written = {name for text in files for name in re.findall(r"^def (test_\w+)", text, re.M)}
    assert set(re.findall(r"`(test_\w+)`", tables)) == written
