"""GLOSSARY.md names every class that more than one other module imports, below the package that defines it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.sources import LOAD, Module, shipped

pytestmark = LOAD
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "GLOSSARY.md"
ORIGINS = "weft.exchange.importers"
NOT_YET: tuple[str, ...] = ()
"""Packages whose classes are not in the glossary yet."""
VOCABULARY = (
    "event content message turn thread session program agent human conversation resource trigger principal".split()
)

SECTION = re.compile(r"^### `(\S+)/`$\n(.*?)(?=^##|\Z)", re.M | re.S)
ENTRY = re.compile(r"^\| `(\w+)` \| \S.* \|$", re.M)
WORD = re.compile(r"^\| \*\*(.+?)\*\* \| \S.* \|$", re.M)

Name = tuple[str, str]  # module and name


class NamedModule(NamedTuple):
    folder: str
    imports: dict[str, Name]
    """What every imported name stands for."""
    classes: tuple[str, ...]


@cache
def modules() -> dict[str, NamedModule]:
    """Every module outside the importers."""
    found = {}
    for module in shipped():
        if not module.name.startswith(ORIGINS):
            classes = tuple(node.name for node in module.tree.body if isinstance(node, ast.ClassDef))
            folder = str(Path(module.path).parent.relative_to("weft"))
            found[module.name] = NamedModule(folder, imports(module), classes)
    return found


def imports(module: Module) -> dict[str, Name]:
    nodes = [node for node in module.nodes_of(ast.ImportFrom) if node.module]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in nodes for alias in node.names}


def home(name: Name, classes: dict[Name, str], imported: dict[str, dict[str, Name]]) -> Name:
    """Where a name is defined, followed through the packages that pass it on."""
    passed: set[Name] = set()
    while name not in classes and name not in passed and name[1] in imported.get(name[0], {}):
        passed.add(name)
        name = imported[name[0]][name[1]]
    return name


def defined() -> dict[Name, str]:
    """All classes, with the folder of their module."""
    return {(name, one): module.folder for name, module in modules().items() for one in module.classes}


def shared_classes() -> dict[str, str]:
    """Classes that two other modules import, directly or through a package, with the folder of their module."""
    classes = defined()
    imported = {name: module.imports for name, module in modules().items()}
    users: dict[Name, set[str]] = defaultdict(set)
    for module, names in imported.items():
        for source in names.values():
            users[home(source, classes, imported)].add(module)
    shared = [name for name in classes if len(users[name] - {name[0]}) > 1 and not name[0].startswith(NOT_YET)]
    return {name: classes[module, name] for module, name in shared}


def explained_classes() -> dict[str, str]:
    return {name: folder for folder, part in SECTION.findall(PAGE.read_text()) for name in ENTRY.findall(part)}


def test_every_shared_class_is_explained() -> None:
    explained = explained_classes()
    missing = [f"{folder}: {name}" for name, folder in shared_classes().items() if explained.get(name) != folder]
    assert len(explained) > 300
    assert missing == []


def test_every_explained_class_exists() -> None:
    classes = {(folder, name) for (_, name), folder in defined().items()}
    assert sorted({(folder, name) for name, folder in explained_classes().items()} - classes) == []


def test_no_class_is_explained_twice() -> None:
    names = ENTRY.findall(PAGE.read_text())
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_the_vocabulary_is_explained_in_order() -> None:
    words = WORD.findall(PAGE.read_text())
    assert set(VOCABULARY) <= set(words)
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))
