"""Where Weft is installed in the workspace, as in the environment of a project, nothing that an agent does there
unasked changes what Weft loads next, outside of any sandbox."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import _machine, begin, calling, folder, project, running, weft
from tests.sizes import share
from tests.surfaces.shell import Shell
from weft.runtime.sandbox.sandbox_plan import own_installation

__all__ = ["_machine", "folder", "project", "weft"]
ON_DISK = True  # no sandbox takes a workspace in memory
LOADED = "tools/.venv/lib/site-packages/msgspec/__init__.py"
COMMANDS = (
    f"echo evil >> {LOADED}",
    f"rm -f {LOADED}",
    "mv tools aside && mkdir -p tools/.venv && echo evil > tools/.venv/pyvenv.cfg",
    "mv tools/.venv aside",
    "echo evil > tools/.venv/lib/site-packages/evil.pth",
    f"sh -c 'chmod 777 {LOADED}; cp /dev/null {LOADED}'",
)


@pytest.fixture
def environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment that this process is told to have been started in."""
    module = project / LOADED
    module.parent.mkdir(parents=True)
    module.write_text("good\n")
    monkeypatch.setattr(sys, "prefix", str(project / "tools" / ".venv"))
    return project / "tools" / ".venv"


def contents(environment: Path) -> dict[str, str]:
    return {str(path.relative_to(environment)): path.read_text() for path in environment.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", share(COMMANDS, test=2))
def test_no_command_changes_what_weft_loads(weft: Shell, environment: Path, command: str) -> None:
    before = contents(environment)
    assert begin(weft, running(command)) == []
    assert contents(environment) == before
    assert weft("sandbox", "run", "--", "sh", "-c", command).code != 0
    assert contents(environment) == before


@pytest.mark.parametrize("path", [LOADED, "tools/.venv/lib/site-packages/evil.pth"])
def test_no_file_tool_changes_it_unasked(weft: Shell, environment: Path, path: str) -> None:
    before = contents(environment)
    (asked,) = begin(weft, calling("write", path=path, content="evil\n"))
    assert f"{path} is a part of the installation of Weft" in (asked.rationale or "")
    assert contents(environment) == before


def test_other_files_beside_it_are_written(weft: Shell, environment: Path, project: Path) -> None:
    assert begin(weft, running("echo b > tools/b.txt && echo c > c.txt")) == []
    assert ((project / "tools" / "b.txt").read_text(), (project / "c.txt").read_text()) == ("b\n", "c\n")


def test_the_workspace_may_lie_in_the_installation_or_beside_it(environment: Path, tmp_path: Path) -> None:
    assert own_installation(str(environment)) == ()
    assert own_installation(str(environment / "lib")) == ()
    assert own_installation(str(tmp_path / "elsewhere")) == ()
    package = Path(sys.modules["weft"].__file__ or "").resolve().parent
    assert str(package) in own_installation(str(package.parent))
