"""A folder in memory for faults that are no matter of the disk: thousands of ledgers are made and thrown away there."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH = 1024**3


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """As tmp_path; in memory where the system offers enough of it."""
    if not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="weft-faults-") as folder:
        yield Path(folder)
