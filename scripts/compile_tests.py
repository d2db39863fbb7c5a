"""Compile the package and its tests once, before several processes load them: each would compile them anew.

pytest has a bytecode of its own for tests, with what their assertions say. It is written here as pytest writes it, and
no test is loaded for that.
"""

from __future__ import annotations

import ast
import compileall
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.assertion import rewrite
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "tests")


class Compiler:
    """Takes the place of collecting. What pytest loads before that it has compiled itself."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool:
        for folder in FOLDERS:
            for file in sorted((session.config.rootpath / folder).rglob("*.py")):
                if file.name == "conftest.py" or file.name.startswith("test_"):
                    compile_test(file, session.config)
                else:
                    compileall.compile_file(file, quiet=1)
        return True


def compile_test(file: Path, config: pytest.Config) -> None:
    folder = get_cache_dir(file)
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"{file.stem}{PYC_TAIL}"
    if _read_pyc(file, cached) is None:
        source_hash, code = _rewrite_test(file, config)
        _write_pyc(config.stash[assertstate_key], code, source_hash, cached)


def placed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Those of a statement that have a place in the file: pytest gives one to each that it has made. It goes through
    all nodes itself, by generators in generators, which takes it half of the compiling."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node._attributes:
            yield node
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif isinstance(value, list):
                waiting += [child for child in value if isinstance(child, ast.AST)]


def main(root: Path = ROOT) -> int:
    rewrite.traverse_node = placed_nodes
    gc.disable()  # trees are freed without it, and to walk through them takes a sixth of the time
    try:
        ended = pytest.main(["-qq", "--rootdir", str(root)], plugins=[Compiler()])
    finally:
        gc.enable()
    return 0 if ended is pytest.ExitCode.NO_TESTS_COLLECTED else int(ended)


if __name__ == "__main__":
    sys.exit(main())
