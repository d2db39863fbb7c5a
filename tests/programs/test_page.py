"""docs/programs.md: its examples run, and its tables say what the code says."""

import re
from pathlib import Path
from typing import Any

from weft.kernel.enums import CriterionType, ProgramKind
from weft.programs.configs import TABLES
from weft.programs.criteria import FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "programs.md").read_text()


def test_the_examples_run() -> None:
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        exec(block, scope)


def test_every_field_of_every_kind_is_listed() -> None:
    text = PAGE.split("## Configurations")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (`.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(ProgramKind)
    for kind, (_, fields) in TABLES.items():
        listed = set(re.findall(r"`(\w+)`", rows[kind]))
        assert set(fields) - {"token", "key", "secret", "password"} <= listed, kind


def test_every_criterion_is_listed_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", PAGE.split("## Tasks")[1].split("\n## ")[0], re.MULTILINE))
    assert set(rows) == set(CriterionType)
    for kind, (_, fields) in FIELDS.items():
        assert set(re.findall(r"`(\w+)`", rows[kind])) == set(fields), kind
