"""docs/agents.md: its examples run, and its tables say what the code says."""

import re
from pathlib import Path
from typing import Any

import pytest

from weft.kernel.enums import CriterionType, ProgramKind
from weft.programs.kind_table import KINDS
from weft.programs.tasks import CRITERION_FIELDS

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text()


@pytest.mark.load("local model")
@pytest.mark.slow("loads what asks models, and starts the embedded one")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 6
    for block in blocks:
        exec(block, scope)


def test_every_field_of_every_kind_is_listed() -> None:
    text = PAGE.split("## Configurations")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (\w+) \| (`.*) \|$", text, re.MULTILINE))
    assert set(rows) == set(ProgramKind) == set(KINDS)
    for name, kind in KINDS.items():
        listed = set(re.findall(r"`(\w+)`", rows[name]))
        assert set(kind.fields) - {"token", "key", "secret", "password"} <= listed, name


def test_every_criterion_is_listed_with_its_fields() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (`.*) \|$", PAGE.split("## Tasks")[1].split("\n## ")[0], re.MULTILINE))
    assert set(rows) == set(CriterionType)
    for kind, (_, fields) in CRITERION_FIELDS.items():
        assert set(re.findall(r"`(\w+)`", rows[kind])) == set(fields), kind
