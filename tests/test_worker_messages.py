"""What a run in several processes says of its tests, and how little of it is sent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

@pytest.fixture
def broken():
    raise OSError("no fixture")

@pytest.fixture
def broken_in_the_end():
    yield
    raise OSError("no end")

def test_that_passes(): print("unseen")
def test_that_fails(): print("seen"); assert not 1
def test_that_is_skipped(): pytest.skip("why not")
def test_without_its_fixture(broken): pass
def test_before_the_end(broken_in_the_end): pass
@pytest.mark.xfail(strict=True)
def test_that_passes_by_mistake(): pass
@pytest.mark.xfail(strict=True)
def test_that_is_known_to_fail(): assert False
"""
COUNTING = """
REPORTS = []

def pytest_runtest_logreport(report):
    REPORTS.append(f"{report.nodeid.partition('::')[2]} {report.when}")

def pytest_terminal_summary(terminalreporter):
    if not hasattr(terminalreporter.config, "workerinput"):
        terminalreporter.write_line(f"arrived: {sorted(REPORTS)}")
"""


def lines_of_run(folder: Path, *options: str) -> list[str]:
    """The lines of a run of the tests above, in one worker beside the process that writes them."""
    (folder / "test_these.py").write_text(TESTS)
    (folder / "conftest.py").write_text(COUNTING)
    plugins = ["-p", "xdist", "-p", "tests.worker_messages", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, "--rootdir", str(folder), "-c", os.devnull, "-n1", "-rA"]
    environment = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        [*command, *options, str(folder)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stderr
    return run.stdout.splitlines()


def summary(lines: list[str]) -> list[str]:
    """What each test came to, and the sums."""
    return [line.partition(" in ")[0] for line in lines if line.startswith(("PASSED", "FAILED", "ERROR", "XF", "= "))]


@pytest.mark.slow("starts two runs of pytest")
def test_a_run_says_the_same_where_less_of_it_is_sent(tmp_path: Path) -> None:
    brief, whole = lines_of_run(tmp_path), lines_of_run(tmp_path, "--durations=0")
    for lines in (brief, whole):
        assert "2 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors" in lines[-1]
        assert "seen" in lines
        assert sum(line.startswith("E       OSError: no ") for line in lines) == 2
    assert summary(brief[:-1]) == summary(whole[:-1])
    assert "'test_that_passes call'" in arrived(brief)
    assert "'test_that_passes setup'" not in arrived(brief)
    assert "'test_that_passes teardown'" not in arrived(brief)
    assert "'test_before_the_end teardown'" in arrived(brief)
    assert "'test_that_passes setup'" in arrived(whole)
    assert "'test_that_passes teardown'" in arrived(whole)


def arrived(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("arrived: "))
