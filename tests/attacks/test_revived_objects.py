"""Stored bytes stay values: nothing in the package revives objects from data, or runs text as code."""

from __future__ import annotations

import ast
import builtins
import os
import pickle
from pathlib import Path

import pytest

from tests.sources import LOAD, Module, shipped
from weft.exchange.importing.reading_ahead import WorkerLost, unpack

pytestmark = LOAD
REVIVING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
RUNNING = {"eval", "exec", "compile", "__import__"}

HARNESS = "runtime/policies/harness.py"
"""Runs the source of a policy, inside the sandbox, in a process of its own; the package reads its constants alone."""
HANDOVER = "exchange/importing/reading_ahead.py"
"""Takes records from a process that it started itself, of a fixed list of classes: see the test below."""


def revivals(module: Module) -> set[str]:
    """Names that revive or run, as a module imports or calls them."""
    names = {alias.name.split(".")[0] for node in module.nodes_of(ast.Import) for alias in node.names} & REVIVING
    names |= {(node.module or "").split(".")[0] for node in module.nodes_of(ast.ImportFrom)} & REVIVING
    called = {node.func.id for node in module.nodes_of(ast.Call) if isinstance(node.func, ast.Name)}
    return names | called & RUNNING


def test_no_module_revives_objects_or_runs_text() -> None:
    assert len(shipped()) > 300
    outside = [module for module in shipped() if not module.path.endswith((HARNESS, HANDOVER))]
    assert {module.path: found for module in outside if (found := revivals(module))} == {}


class Reviving:
    """What an attacker who could write to the pipe would send."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("sent", [Reviving(), os.system, Path("a"), [{"turn": Reviving()}], builtins.eval])
def test_a_record_of_another_class_is_not_taken_over(sent: object) -> None:
    with pytest.raises(WorkerLost, match="is not handed over"):
        unpack(pickle.dumps(sent))


def written_in(text: str) -> set[str]:
    return revivals(Module("weft/any.py", text))


def test_the_rule_notices_what_it_forbids() -> None:
    assert written_in("import pickle\nfrom marshal import loads\neval('1')\n__import__('x')") == {
        "pickle", "marshal", "eval", "__import__",
    }  # fmt: skip
    assert written_in("import re\nre.compile('a')") == set()
    assert written_in("\uff45val('1')") == {"eval"}, "letters that Python takes for others"
