"""Which modules write which kinds of event, read off the source.

A module writes a kind where it makes an event of its class, or hands the class to a call of `add`, `step` or a name
that begins with `_add`: by name, by a variable that holds it, or as a column of the table of program kinds. The kernel
defines the kinds; views and readers only tell them apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from weft.kernel.foreign_input import EVENT_KINDS
from weft.kernel.program_events import PROGRAM_KINDS, KindFacts

SOURCE = Path(__file__).resolve().parents[1] / "src" / "weft"
READERS = ("kernel", "ledger/views", "ledger/read", "aio")
WRITING_CALL = re.compile(r"add|step|_add\w*")
KIND_OF_CLASS = {kind.__name__: name for name, kind in EVENT_KINDS.items()}
MENTION = re.compile(r"\bevents\b|_events\b|\bPROGRAM_KINDS\b|\.facts\.")
"""What the source of a module that writes events holds: most modules need not be parsed."""

Classes = frozenset[str]
NONE: Classes = frozenset()


@cache
def event_producers(parse: Callable[[str], ast.Module] = ast.parse) -> dict[str, tuple[str, ...]]:
    """By kind, the modules below `src/weft` that write it, in order; none where nothing does."""
    modules: dict[str, list[str]] = {name: [] for name in EVENT_KINDS}
    for path in sorted(SOURCE.rglob("*.py")):
        module, source = path.relative_to(SOURCE).as_posix(), path.read_text()
        if MENTION.search(source) and not module.startswith(tuple(f"{reader}/" for reader in READERS)):
            for written in set(classes_written(parse(source))):
                modules[KIND_OF_CLASS[written]].append(module)
    return {name: tuple(found) for name, found in modules.items()}


def classes_written(tree: ast.Module) -> Iterator[str]:
    """The names of the event classes of which a module writes events."""
    nodes = list(ast.walk(tree))
    imported, modules = dict(_imported_classes(nodes)), frozenset(_imported_modules(nodes))
    scope = dict(imported)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            scope[name] = scope.get(name, NONE) | _meant(node.value, scope, modules)
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=arguments) if (
                WRITING_CALL.fullmatch(called)
            ):
                for argument in arguments:
                    yield from _meant(argument, scope, modules)
            case ast.Call(func=ast.Name(id=made)) if made in imported:
                yield from imported[made]
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=made)) if (
                module in modules and made in KIND_OF_CLASS
            ):
                yield made


def _imported_classes(nodes: Sequence[ast.AST]) -> Iterator[tuple[str, Classes]]:
    """Names that an import gives to event classes."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weft.kernel."):
            for alias in node.names:
                if alias.name in KIND_OF_CLASS:
                    yield alias.asname or alias.name, frozenset({alias.name})


def _imported_modules(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Names that an import gives to modules of the kernel."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "weft.kernel":
            yield from (alias.asname or alias.name for alias in node.names)


def _meant(expression: ast.expr, scope: dict[str, Classes], modules: frozenset[str]) -> Classes:
    """The event classes that an expression may stand for."""
    match expression:
        case ast.Name(id=name):
            return scope.get(name, NONE)
        case ast.IfExp(body=body, orelse=other):
            return _meant(body, scope, modules) | _meant(other, scope, modules)
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules and name in KIND_OF_CLASS:
            return frozenset({name})
        case ast.Subscript(value=ast.Attribute(value=row, attr="steps")):
            return frozenset(kind.__name__ for facts in _table_rows(row) for kind in facts.steps.values())
        case ast.Attribute(value=row, attr="created" | "configured" as column):
            return frozenset(getattr(facts, column).__name__ for facts in _table_rows(row))
    return NONE


def _table_rows(row: ast.expr) -> Iterator[KindFacts]:
    """Rows of the table of program kinds: the one that is named, as in `SESSION.facts`, else all that have a stream of
    a program."""
    named = [node.id.lower() for node in ast.walk(row) if isinstance(node, ast.Name)]
    rows = [PROGRAM_KINDS[name] for name in named if name in PROGRAM_KINDS]
    yield from rows or (facts for facts in PROGRAM_KINDS.values() if facts.stream == "program")
