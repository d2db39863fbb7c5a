"""A workspace with files beside it that no tool may touch."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.ledger.api import Ledger
from weft.runtime.tool.tool_contract import CallPlan, PlannedTool, ToolCallContext, ToolOutput
from weft.runtime.tool.workspace import WorkspaceFolder

CONTEXT = ToolCallContext(turn="01TURN", call="01CALL")
CANARY = "the canary nobody reads"


def plan(tool: PlannedTool, **arguments: Any) -> CallPlan:
    return asyncio.run(tool.plan(arguments, CONTEXT))


def perform(tool: PlannedTool, plan: CallPlan) -> ToolOutput:
    output = asyncio.run(tool.perform(plan, CONTEXT))
    assert isinstance(output, ToolOutput)
    return output


def call(tool: PlannedTool, **arguments: Any) -> ToolOutput:
    return perform(tool, plan(tool, **arguments))


def tree_digest(folder: Path) -> str:
    """Of every name, type, mode and byte in a folder, links not followed."""
    digest = hashlib.sha256()
    for place, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*files, *folders]):
            path = Path(place, name)
            status = path.lstat()
            digest.update(f"{path}\0{status.st_mode}\0".encode(errors="surrogateescape"))
            if path.is_file() and not path.is_symlink():
                digest.update(path.read_bytes())
    return digest.hexdigest()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`workspace` with a ledger in it, and beside it `outside` with a canary."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary.txt").write_text(CANARY)
    workspace = tmp_path / "workspace"
    (workspace / ".weft").mkdir(parents=True)
    (workspace / ".weft" / "ledger.db").write_text(CANARY)
    (workspace / "src").mkdir()
    return workspace


@pytest.fixture
def workspace(place: Path) -> WorkspaceFolder:
    return WorkspaceFolder(place)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with weft.open(":memory:") as ledger:
        yield ledger


@pytest.fixture(params=["openat2", "by parts"])
def each_opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to open beneath a folder: the kernel's, and the one for kernels without it."""
    if request.param == "by parts":
        never: Callable[[], bool] = lambda: False  # noqa: E731
        monkeypatch.setattr("weft.runtime.opened_folders.has_openat2", never)
    return str(request.param)
