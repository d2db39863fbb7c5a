"""The tests' PostgreSQL also runs where its programs lie below a folder that only this user can enter."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.postgres import copy_programs


def test_copied_programs_find_their_libraries(tmp_path: Path) -> None:
    home = copy_programs(tmp_path)
    for program in ("initdb", "postgres", "psql"):
        version = subprocess.run([home / "bin" / program, "--version"], capture_output=True, text=True, check=True)
        assert version.stdout.startswith(f"{program} (PostgreSQL)")
