"""Everything that the public verbs return can be imported from `weft`, and type checkers see the same names."""

import ast
import inspect
import typing
from collections.abc import Iterator
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import weft
from scripts.generate_library_docs import PAGE, library_page, sentence
from weft.ledger import api
from weft.ledger.imports import ImportWriter
from weft.programs import Programs
from weft.surfaces import opening

INSIDE = {"ImportWriter", "Event", "UnknownEvent", "EventClass"}
"""Met by those who write importers or read raw events; they have pages of their own."""


def classes_in(annotation: Any) -> Iterator[type]:
    if typing.get_args(annotation):
        for part in (typing.get_origin(annotation), *typing.get_args(annotation)):
            yield from classes_in(part)
    elif isinstance(annotation, type) and annotation.__module__.startswith("weft"):
        yield annotation


def verbs_of(owner: type) -> Iterator[Any]:
    for name in dir(owner):
        member = inspect.getattr_static(owner, name)
        function = getattr(member, "fget", None) or (member.func if isinstance(member, cached_property) else member)
        if not name.startswith("_") and inspect.isfunction(inspect.unwrap(function)):
            yield function


LOADED_LATER = {**{name: getattr(weft, name) for name in weft.__all__}, "ImportWriter": ImportWriter}
"""What a module names in annotations alone, and loads when it is used."""


def returned() -> set[type]:
    """What verbs return, what the fields of those records hold, and what their own verbs return."""
    waiting: list[type] = [weft.Ledger, Programs, weft.Graph]
    met: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind in met or kind.__name__ in INSIDE:
            continue
        met.add(kind)
        if issubclass(kind, msgspec.Struct):
            annotations = list(typing.get_type_hints(kind).values())
        else:
            hints = [typing.get_type_hints(inspect.unwrap(verb), localns=LOADED_LATER) for verb in verbs_of(kind)]
            annotations = [hint["return"] for hint in hints if "return" in hint]
        waiting += [found for annotation in annotations for found in classes_in(annotation)]
    return met


def test_what_verbs_return_is_importable_from_weft() -> None:
    missing = sorted(kind.__name__ for kind in returned() if getattr(weft, kind.__name__, None) is not kind)
    assert missing == []


def test_the_walk_meets_records_and_groups() -> None:
    assert {"Turn", "Session", "Page", "UsageReport", "Erasures", "Program"} <= {kind.__name__ for kind in returned()}


@pytest.mark.parametrize("package", [weft, api])
def test_type_checkers_see_the_names_that_are_there(package: ModuleType) -> None:
    tree = ast.parse(Path(str(package.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    nodes = [node for node in block.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    imports = {alias.asname: node.module for node in nodes for alias in node.names}
    assert imports == package._HOMES
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("name", sorted(weft.__all__))
def test_every_name_is_there(name: str) -> None:
    assert hasattr(weft, name)
    assert hasattr(opening, name) or name != "open"


@pytest.mark.parametrize("package", [weft, api])
def test_dir_lists_the_names_before_they_are_loaded(package: ModuleType) -> None:
    spec = spec_from_file_location("fresh_package", str(package.__file__))
    assert spec is not None
    assert spec.loader is not None
    fresh = module_from_spec(spec)
    spec.loader.exec_module(fresh)
    assert set(package.__all__) - vars(fresh).keys() - {"__version__"} == set(package._HOMES)
    assert set(package.__all__) <= set(dir(fresh))


def test_the_page_of_the_library_lists_every_name() -> None:
    assert PAGE.read_text() == library_page()
    assert [name for name in weft.__all__ if not name.startswith("__") and not sentence(getattr(weft, name))] == []
