"""Stored bytes stay values: nothing in the package revives objects from data, or runs text as code."""

from __future__ import annotations

import ast
import builtins
import os
import pickle
import re
from pathlib import Path
from unicodedata import normalize

import pytest

from weft.exchange.importing.handover import WorkerLost, unpack

SOURCE = sorted((Path(__file__).parents[2] / "src" / "weft").rglob("*.py"))
REVIVING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop"}
RUNNING = {"eval", "exec", "compile", "__import__"}
NAMES = re.compile(rf"\b(?:{'|'.join(REVIVING | RUNNING)})\b")


HARNESS = "runtime/policies/harness.py"
"""Runs the source of a policy, inside the sandbox, in a process of its own; the package reads its constants alone."""
HANDOVER = "exchange/importing/handover.py"
"""Takes records from a process that it started itself, of a fixed list of classes: see the test below."""


def revivals(text: str) -> set[str]:
    """Names that revive or run, as a module imports or calls them."""
    names: set[str] = set()
    if not NAMES.search(normalize("NFKC", text)):  # as Python reads names; most modules need no parsing
        return names
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names} & REVIVING
        elif isinstance(node, ast.ImportFrom):
            names |= {(node.module or "").split(".")[0]} & REVIVING
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names |= {node.func.id} & RUNNING
    return names


def test_no_module_revives_objects_or_runs_text() -> None:
    assert len(SOURCE) > 500
    outside = [path for path in SOURCE if not path.as_posix().endswith((HARNESS, HANDOVER))]
    assert {str(path): found for path in outside if (found := revivals(path.read_text()))} == {}


class Reviving:
    """What an attacker who could write to the pipe would send."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize("sent", [Reviving(), os.system, Path("a"), [{"turn": Reviving()}], builtins.eval])
def test_a_record_of_another_class_is_not_taken_over(sent: object) -> None:
    with pytest.raises(WorkerLost, match="is not handed over"):
        unpack(pickle.dumps(sent))


def test_the_rule_notices_what_it_forbids() -> None:
    assert revivals("import pickle\nfrom marshal import loads\neval('1')\n__import__('x')") == {
        "pickle", "marshal", "eval", "__import__",
    }  # fmt: skip
    assert revivals("import re\nre.compile('a')") == set()
    assert revivals("\uff45val('1')") == {"eval"}, "letters that Python takes for others"
