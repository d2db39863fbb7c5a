"""GLOSSARY.md explains the domain's words; each class that other modules import says what it is."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.sources import LOAD, Module, shipped

pytestmark = LOAD
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "GLOSSARY.md"
MOST_WORDS = 75
VOCABULARY = (
    "event content message turn thread session program agent human conversation resource trigger principal".split()
)

WORD = re.compile(r"^\| \*\*(.+?)\*\* \| \S.* \|$", re.M)

Name = tuple[str, str]  # module and name


@cache
def imported_names() -> dict[str, dict[str, Name]]:
    """By module, what every name that it imports stands for."""
    return {module.name: imports(module) for module in shipped()}


def imports(module: Module) -> dict[str, Name]:
    nodes = [node for node in module.nodes_of(ast.ImportFrom) if node.module]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in nodes for alias in node.names}


def home(name: Name, classes: dict[Name, ast.ClassDef]) -> Name:
    """Where a name is defined, followed through the packages that pass it on."""
    passed: set[Name] = set()
    imported = imported_names()
    while name not in classes and name not in passed and name[1] in imported.get(name[0], {}):
        passed.add(name)
        name = imported[name[0]][name[1]]
    return name


def shared_classes() -> dict[Name, ast.ClassDef]:
    """Classes that two other modules import, directly or through a package."""
    modules = shipped()
    classes = {(m.name, node.name): node for m in modules for node in m.tree.body if isinstance(node, ast.ClassDef)}
    users: dict[Name, set[str]] = defaultdict(set)
    for module, names in imported_names().items():
        for source in names.values():
            users[home(source, classes)].add(module)
    return {name: node for name, node in classes.items() if len(users[name] - {name[0]}) > 1}


def test_every_shared_class_says_what_it_is() -> None:
    shared = shared_classes()
    assert len(shared) > 300
    assert [".".join(name) for name, node in shared.items() if not ast.get_docstring(node)] == []


def test_the_glossary_holds_the_words_of_the_domain_alone() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    words = WORD.findall(PAGE.read_text())
    assert set(VOCABULARY) <= set(words)
    assert len(rows) == len(words) + 2
    assert len(words) <= MOST_WORDS


def test_the_words_stand_once_and_in_order() -> None:
    words = WORD.findall(PAGE.read_text())
    assert words == sorted(words, key=str.lower)
    assert len(words) == len(set(words))


def test_every_module_says_what_it_owns() -> None:
    assert [module.path for module in shipped() if not ast.get_docstring(module.tree)] == []
