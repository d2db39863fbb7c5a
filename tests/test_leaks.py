"""The look for keys that were left behind finds them: planted in a file, in output, in a log and in a process list."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[1]
MARK = "a-planted-mark"
PLANTED = """
import logging, subprocess, time

from tests import leaks

KEY = "a-planted-mark"

def test_file(tmp_path):
    (tmp_path / "x.db").write_bytes(bytes(9000) + KEY.encode())

def test_name_of_a_file(tmp_path):
    (tmp_path / KEY).write_text("")

def test_output():
    print(KEY)

def test_log():
    logging.getLogger("x").warning(KEY)

def test_process_list():
    with subprocess.Popen(["sh", "-c", "read _", KEY], stdin=subprocess.PIPE) as process:
        while not leaks.WATCH.found and process.poll() is None:
            time.sleep(0.01)

def test_nothing(tmp_path):
    assert KEY
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("/proc/self/environ")
"""


@pytest.mark.slow("starts a run of pytest")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_key_that_was_left_behind_fails_the_run(workers: str) -> None:
    with TemporaryDirectory() as folder:  # not below what this very run is looked through for
        file = Path(folder) / "test_plant.py"
        file.write_text(PLANTED)
        plugins = ["-p", "xdist", "-p", "tests.leaks", "-p", "no:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", *plugins]
        ended = subprocess.run(
            [*command, "-n", workers, "-c", "/dev/null", "--rootdir", folder, f"--basetemp={folder}/base", str(file)],
            cwd=ROOT,
            env={**os.environ, "WEFT_TEST_MARK": MARK, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        kept = {path.name for path in (Path(folder) / "base").rglob("test_*0")}
    assert ended.returncode == 1
    found = set(re.findall(r"^(?:FAILED|ERROR) \S*::test_(\w+)", ended.stdout, re.M))
    assert found == {"file", "name_of_a_file", "output", "log", "process_list"}, ended.stdout
    assert kept == {"test_file0", "test_name_of_a_file0"}, "the folder of a test that passed is removed"
