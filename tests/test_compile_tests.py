"""Tests are compiled before several processes load them, as pytest would compile them itself."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from scripts.compile_tests import placed_nodes

ROOT = Path(__file__).parents[1]
COMPILING = "import pathlib, sys; from scripts.compile_tests import main; sys.exit(main(pathlib.Path.cwd()))"
HELPERS = "NUMBER = 1\n"
TEST = """
from helpers import NUMBER

print("loaded")

def test_numbers(fixed_number):
    assert NUMBER == fixed_number
"""
CONFTEST = """
import pytest

print("loaded")

@pytest.fixture
def fixed_number():
    return 2
"""


@pytest.mark.slow("starts two runs of pytest")
def test_what_is_compiled_is_what_pytest_takes(tmp_path: Path) -> None:
    inner = tmp_path / "tests" / "kernel"
    inner.mkdir(parents=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "helpers.py").write_text(HELPERS)
    (inner / "test_numbers.py").write_text(TEST)
    (inner / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = src\naddopts = --import-mode=importlib\n")

    compiling = run(tmp_path, "-c", COMPILING)
    assert compiling.returncode == 0, compiling.stderr
    assert "loaded" not in compiling.stdout
    made = compiled(tmp_path)
    assert [name.partition(".")[0] for name in made] == ["conftest", "helpers", "test_numbers"]

    failed = run(tmp_path, "-m", "pytest", "-p", "no:cacheprovider")
    assert "assert 1 == 2" in failed.stdout  # an assertion says its values where pytest has compiled it
    assert failed.returncode == 1
    assert compiled(tmp_path) == made


ASSERTIONS = """
def test_all_kinds(mail):
    assert mail
    assert not mail.text, f"{mail!r} has {len(mail.text)} letters"
    assert mail.text == "a" and 1 < mail.number <= 3 or mail in [*mail.others, {"k": mail[1:2]}]
    assert (size := mail.size) > 0 and all(part is not None for part in mail.parts if size)
    assert await_of(lambda text, *, most=3: text @ -most)(*mail.parts, most=~4, **{}) not in (mail,), "in it"
    for part in mail.parts:
        with part as opened:
            assert opened if part else (yield part)
"""


def test_an_assertion_has_the_places_that_pytest_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    as_pytest = rewritten(ASSERTIONS)
    monkeypatch.setattr(rewrite, "traverse_node", placed_nodes)
    assert rewritten(ASSERTIONS) == as_pytest


def rewritten(source: str) -> str:
    tree = ast.parse(source)
    rewrite.rewrite_asserts(tree, source.encode())
    compile(tree, "test_all_kinds.py", "exec", dont_inherit=True)  # a node without a place is refused
    return ast.dump(tree, include_attributes=True)


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def compiled(folder: Path) -> dict[str, tuple[int, bytes]]:
    """What lies there, by name, with the moment in which it was written."""
    files = sorted(folder.rglob("__pycache__/*.pyc"), key=lambda path: path.name)
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
