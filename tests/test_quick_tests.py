"""Which tests `make quick` takes for a change."""

from pathlib import Path

import pytest

from scripts.quick_tests import choose, imported_modules, module_name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tests = {
        "ledger/test_heads.py": "from weft.ledger.heads import move\n",
        "ledger/test_all.py": "import weft.ledger.heads\nimport os, re\nfrom tests.ledger.stories import story\n",
        "ledger/test_sessions.py": "from weft.ledger import heads as moved, sessions\n",
        "ledger/test_others.py": "from weft.ledger.others import it\n",
        "contract/test_store.py": "from weft.ledger.heads import move\n",
    }
    for name, text in tests.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).write_text(text)
    return tmp_path


def test_tests_that_import_a_changed_module_are_taken_the_closest_first(root: Path) -> None:
    chosen, left_out = choose(root, ["src/weft/ledger/heads.py", "README.md"], {})
    assert chosen == ["tests/ledger/test_heads.py", "tests/ledger/test_sessions.py", "tests/ledger/test_all.py"]
    assert left_out == []


def test_what_was_changed_comes_first_and_what_does_not_fit_is_left_out(root: Path) -> None:
    changed = ["src/weft/ledger/heads.py", "tests/ledger/test_others.py"]
    chosen, left_out = choose(root, changed, {"ledger/test_heads.py": 80, "ledger/test_all.py": 30})
    assert chosen == ["tests/ledger/test_others.py", "tests/ledger/test_heads.py", "tests/ledger/test_sessions.py"]
    assert left_out == ["tests/ledger/test_all.py"]


@pytest.mark.parametrize("end", ["sql", "json"])
def test_a_changed_file_that_is_no_module_takes_the_tests_of_its_name(root: Path, end: str) -> None:
    assert choose(root, [f"src/weft/ledger/others.{end}"], {})[0] == ["tests/ledger/test_others.py"]


def test_a_changed_helper_of_tests_takes_those_that_import_it(root: Path) -> None:
    assert choose(root, ["tests/ledger/stories.py"], {})[0] == ["tests/ledger/test_all.py"]


def test_modules_have_the_names_that_imports_give_them() -> None:
    assert module_name("src/weft/ledger/__init__.py") == "weft.ledger"
    assert module_name("src/weft/a.sql") is None
    names = list(imported_modules("from a.b import (\n  c as x, d)\nif x:\n    import e\ny = 'from f import g'\n"))
    assert names == ["a.b", "a.b.c", "a.b.d", "e"]
