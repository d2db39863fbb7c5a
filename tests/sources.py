"""The modules of the package as their syntax shows them, for all tests that look through it.

To read and parse them takes seconds: that happens once a run, for the files of these tests are of one load.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.collector import paused_collector

SOURCE = Path(__file__).parents[1] / "src"
LOAD = pytest.mark.load("parsed sources")
FACADE = "the facade"
"""`weft/__init__.py`, its siblings and `weft/aio/`: they show what the layers offer."""

N = TypeVar("N", bound=ast.AST)


def nodes_below(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a tree, itself among them, in the order of `ast.walk`, which takes twice as long."""
    nodes = [tree]
    for node in nodes:  # grows meanwhile
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [child for child in value if isinstance(child, ast.AST)]
    return nodes


@dataclass(frozen=True)
class Module:
    path: str  # from src/, as in weft/kernel/ids.py
    source: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree, in the order of `ast.walk`; the rules read them again and again."""
        return tuple(nodes_below(self.tree))

    @cached_property
    def _nodes_by_kind(self) -> dict[type[ast.AST], list[Any]]:
        nodes: defaultdict[type[ast.AST], list[Any]] = defaultdict(list)
        for node in self.nodes:
            nodes[type(node)].append(node)
        return dict(nodes)

    def nodes_of(self, kind: type[N]) -> list[N]:
        """The nodes of one kind, in the same order."""
        return self._nodes_by_kind.get(kind, [])

    @property
    def name(self) -> str:
        """As it is imported."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @cached_property
    def layer(self) -> str:
        parts = self.path.split("/")
        return parts[1] if len(parts) > 2 and parts[1] != "aio" else FACADE

    @cached_property
    def imports(self) -> list[tuple[int, str]]:
        """Line and full dotted name of all that is imported, wherever in the module."""
        whole = [(node.lineno, alias.name) for node in self.nodes_of(ast.Import) for alias in node.names]
        parts = [node for node in self.nodes_of(ast.ImportFrom) if node.level == 0]
        return whole + [(node.lineno, f"{node.module}.{alias.name}") for node in parts for alias in node.names]

    @cached_property
    def meanings(self) -> dict[str, str]:
        """What each imported name stands for: `from time import time as now` makes `now` time.time."""
        found = {}
        for alias in (alias for node in self.nodes_of(ast.Import) for alias in node.names):
            top = alias.name.partition(".")[0]
            found[alias.asname or top] = alias.name if alias.asname else top
        for node in self.nodes_of(ast.ImportFrom):
            if node.level == 0:
                found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        return found

    def dotted(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self.meanings.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def mentions(self, names: frozenset[str]) -> Iterator[tuple[int, str]]:
        """Every place that imports or uses one of these dotted names."""
        for line, name in self.imports:
            if name in names or name.partition(".")[0] in names:
                yield line, name
        for node in self.nodes_of(ast.Attribute):
            if (name_used := self.dotted(node)) in names:
                yield node.lineno, str(name_used)

    @cached_property
    def reasons(self) -> dict[int, bool]:
        """Lines with a comment that a reader learns from, and whether the comment has the line to itself."""
        found = {}
        for token in tokenize.generate_tokens(io.StringIO(self.source).readline):
            if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|ruff:|type:|pragma)", token.string):
                found[token.start[0]] = not token.line[: token.start[1]].strip()
        return found


@cache
def _modules() -> tuple[Module, ...]:
    return tuple(
        Module(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted((SOURCE / "weft").rglob("*.py"))
    )


@cache
def shipped() -> tuple[Module, ...]:
    """All modules of the package, parsed."""
    with paused_collector():
        for module in _modules():
            module.nodes_of(ast.Import)  # parses it now, and keeps all nodes
    return _modules()


@cache
def _modules_by_source() -> dict[str, Module]:
    return {module.source: module for module in _modules()}


def parsed(source: str) -> ast.Module:
    """The tree of a module of the package, by its text; parsed now if no test needed it before."""
    return _modules_by_source()[source].tree
