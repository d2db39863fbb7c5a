"""ARCHITECTURE.md has a line for each package, names paths that exist, and states the orders that are held."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.test_layers import LAYERS, LEDGER_ORDER, RUNTIME_ORDER
from tests.sources import LOAD, shipped

pytestmark = LOAD

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"
PAGE = ROOT / "ARCHITECTURE.md"
MOST_LINES = 250
ORIGINS = "exchange/importers/"
"""Its packages are one for each origin, and are named as a whole."""

ROW = re.compile(r"^\| `(\S+)/` \| \S.* \|$", re.M)
TOKEN = re.compile(r"`([\w./]+)`")
TRACED = re.compile(r"^([a-z]\S*(?:\.py|/))\s", re.M)
"""A path at the beginning of a line: a module on the way that a section follows."""
PATH = re.compile(r"(?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|md)")


def packages() -> list[str]:
    """Folders that hold modules beside their `__init__.py`."""
    folders = {path.parent for path in SOURCE.rglob("*.py") if path.name != "__init__.py"} - {SOURCE}
    names = sorted(str(folder.relative_to(SOURCE)) for folder in folders)
    return [name for name in names if not name.startswith(ORIGINS)]


def test_every_package_has_a_line() -> None:
    rows = ROW.findall(PAGE.read_text())
    assert sorted(set(packages()) - set(rows)) == []
    assert [row for row in rows if not (SOURCE / row).is_dir()] == []
    assert len(rows) == len(set(rows))


def test_modules_in_brackets_lie_in_the_package_of_their_row() -> None:
    named = [
        (row, name)
        for row, text in re.findall(r"^\| `(\S+)/` \| (.*) \|$", PAGE.read_text(), re.M)
        for bracket in re.findall(r"\(((?:[^()`]|`[^`]*`)*)\)", text)
        for name in re.findall(r"`(\w+)`", bracket)
    ]
    assert len(named) > 100
    assert [(row, name) for row, name in named if not (SOURCE / row / f"{name}.py").is_file()] == []


def test_every_path_that_is_named_exists() -> None:
    text = PAGE.read_text()
    traced = [path for path in TRACED.findall(text) if "/" in path]
    assert len(traced) > 30
    paths = [name for name in TOKEN.findall(text) if PATH.fullmatch(name)]
    assert len(paths) > 20
    bases = (ROOT, SOURCE, SOURCE.parent)
    assert [name for name in traced + paths if not any((base / name).exists() for base in bases)] == []
    links = re.findall(r"\]\(([\w./-]+)[)#]", text)
    assert [name for name in links if not (ROOT / name).exists()] == []


def test_its_orders_are_those_that_are_held() -> None:
    text = " ".join(PAGE.read_text().split())
    assert " < ".join(LAYERS) in text
    assert "ledger: " + " < ".join(LEDGER_ORDER) in text
    assert "runtime: " + " < ".join(RUNTIME_ORDER) in text


def test_it_is_read_in_ten_minutes() -> None:
    assert len(PAGE.read_text().splitlines()) <= MOST_LINES


def test_pages_that_the_program_names_exist() -> None:
    named = {(module.path, page) for module in shipped() for page in re.findall(r"\bdocs/([\w/-]+\.md)", module.source)}
    assert len(named) > 3
    assert sorted((path, page) for path, page in named if not (ROOT / "docs" / page).exists()) == []
