"""Cgroups of runs: taken where they are delegated, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sandbox import machine_sandbox, run_python
from weft.runtime.sandbox.bubblewrap import NO_CGROUP
from weft.runtime.sandbox.confinement import delegated_cgroup
from weft.runtime.sandbox.processes import MIB, Ending, Limits


def hierarchy(root: Path, controllers: str) -> Path:
    """Files as the kernel shows them; no cgroup can be made in it."""
    for folder in (root, root / "user.slice", root / "user.slice" / "own.scope"):
        folder.mkdir(exist_ok=True)
        for name in ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs"):
            (folder / name).write_text(controllers if name != "cgroup.procs" else "")
    return root


def membership(folder: Path, text: str) -> Path:
    file = folder / "membership"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("controllers", "text"),
    [
        ("memory pids", "4:memory:/user.slice\n1:pids:/\n"),  # version 1 alone
        ("memory pids", "0::/\n"),  # the root: nothing lies above it
        ("memory", "0::/user.slice/own.scope\n"),  # processes would not be counted
        ("", "4:memory:/\n0::/user.slice/own.scope\n"),  # both versions, the controllers in version 1
        ("memory pids", ""),
    ],
)
def test_a_cgroup_that_does_not_limit_is_none(tmp_path: Path, controllers: str, text: str) -> None:
    root = hierarchy(tmp_path / "cgroup", controllers)
    assert delegated_cgroup(root, membership(tmp_path, text)) is None


def test_without_a_hierarchy_there_is_no_cgroup(tmp_path: Path) -> None:
    assert delegated_cgroup(tmp_path, membership(tmp_path, "0::/own\n")) is None
    assert delegated_cgroup(tmp_path, tmp_path / "gone") is None


def test_what_a_machine_has_not_is_said() -> None:
    sandbox = machine_sandbox()
    assert (NO_CGROUP in sandbox.gaps) == (sandbox.cgroup is None)


def test_a_delegated_cgroup_limits_and_is_gone_afterwards(tmp_path: Path) -> None:
    parent = machine_sandbox().cgroup
    if parent is None:
        pytest.skip(NO_CGROUP)
    outcome = run_python("held = bytearray(1 << 30)", tmp_path, limits=Limits(memory=64 * MIB))
    assert outcome.ending is Ending.TOO_MUCH_MEMORY
    assert list(parent.glob("weft-*")) == []
