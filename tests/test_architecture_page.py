"""ARCHITECTURE.md names every package and module, and every path that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "weft"
PAGE = ROOT / "ARCHITECTURE.md"
BY_PACKAGE = ("surfaces/cli/commands",)
"""Described as a whole: what is inside need not be named."""

SECTION = re.compile(r"^### `(\S+)/`$", re.M)
ROW = re.compile(r"^\| (`.+?) \|", re.M)
TOKEN = re.compile(r"`([\w./]+)`")
PATH = re.compile(r"(?:[\w.]+/)+|(?:[\w.]+/)*[\w.]+\.(?:py|md)")


def sections(text: str) -> list[tuple[Path, str]]:
    """The folder of each heading that is one, and the text below it."""
    headings = list(SECTION.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), text.index("\n## ", headings[-1].end())]
    return [(SOURCE / h[1], text[h.end() : end]) for h, end in zip(headings, ends, strict=True)]


def owned(text: str) -> set[Path]:
    """Folders of headings, and what stands in the first column of the tables below them."""
    paths: set[Path] = set()
    for folder, part in sections(text):
        paths.add(folder)
        paths.update(folder / name for row in ROW.findall(part) for name in TOKEN.findall(row))
    return paths


def described() -> set[Path]:
    """Every package, and every module outside the packages of origins."""
    paths = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    paths = [path.parent if path.name == "__init__.py" else path for path in paths]
    inside_origins = {path for path in paths if re.match(r"exchange/importers/(?!records/)\w+/.", str(path))}
    inside_others = {path for path in paths if str(path).startswith(tuple(f"{name}/" for name in BY_PACKAGE))}
    return set(paths) - inside_origins - inside_others


def test_every_package_and_module_is_named() -> None:
    named = {path.relative_to(SOURCE) for path in owned(PAGE.read_text())}
    assert sorted(map(str, described() - named)) == []


def test_every_path_that_is_named_exists() -> None:
    text = PAGE.read_text()
    tables = sorted(str(path) for path in owned(text) if not path.exists())
    prose = ROW.sub("", text)
    paths = [name for name in TOKEN.findall(prose) if PATH.fullmatch(name)]
    assert len(paths) > 20
    missing = [name for name in paths if not any((base / name).exists() for base in (ROOT, SOURCE, SOURCE.parent))]
    links = [name for name in re.findall(r"\]\(([\w./-]+)\)", text) if not (ROOT / name).exists()]
    assert (tables, missing, links) == ([], [], [])


def test_no_module_is_owned_twice() -> None:
    rows = [(folder, row) for folder, part in sections(PAGE.read_text()) for row in ROW.findall(part)]
    names = [folder / name for folder, row in rows for name in TOKEN.findall(row)]
    assert sorted(str(path) for path in set(names) if names.count(path) > 1) == []
