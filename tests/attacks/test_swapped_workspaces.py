"""Somebody may name one folder, and has another one in its place as soon as a turn was planned: no tool works there. An
agent leads the workspace of another session to a folder of the person: no turn works there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.test_approved_bytes import AttackedRunner, performed
from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
)
from tests.attacks.test_machine_names import CANARY, with_home
from tests.runtime.scripted import chat
from tests.sandbox import UNPROTECTED
from tests.sizes import share
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.kernel.errors import WeftError
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.profiles import SandboxProfile, parse_profile
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tools.shell import ShellTool

ON_DISK = True  # no sandbox takes a workspace in memory
PROFILES = (SandboxProfile(), parse_profile("none", granted_by="human:ann"))


def by_a_link(place: Path, home: Path) -> None:
    place.rename(place.with_name("old"))
    place.symlink_to(home)


def by_a_link_above(place: Path, home: Path) -> None:
    place.parent.rename(place.parent.with_name("old"))
    place.parent.symlink_to(home.parent)


def by_a_folder(place: Path, home: Path) -> None:
    place.rename(place.with_name("old"))
    home.rename(place)


SWAPS = (by_a_link, by_a_link_above, by_a_folder)
COMMAND = {"cmd": "cat letters/to-a-friend.txt"}


@pytest.mark.parametrize("profile", PROFILES, ids=str)
@pytest.mark.parametrize("swap", SWAPS)
def test_no_command_is_planned_in_what_took_the_place_of_the_workspace(
    tmp_path: Path, swap: Callable[[Path, Path], None], profile: SandboxProfile
) -> None:
    home, place = Path(with_home(tmp_path / "owner/w")), tmp_path / "shared/w"
    place.mkdir(parents=True)
    tool = ShellTool(place, runner=CommandRunner(UNPROTECTED), profile=profile)
    swap(place, home)
    with pytest.raises(ToolFailure, match="taken the workspace's place"):
        performed(tool, COMMAND)


@pytest.mark.parametrize("swap", SWAPS[:2])
def test_no_command_runs_in_what_a_link_leads_to_since_the_last_look(
    tmp_path: Path, swap: Callable[[Path, Path], None]
) -> None:
    home, place = Path(with_home(tmp_path / "owner/w")), tmp_path / "shared/w"
    (place / "letters").mkdir(parents=True)
    tool = ShellTool(place, runner=AttackedRunner(lambda: swap(place, home)))
    try:
        answer = performed(tool, {"cmd": "cat letters/*"})
    except WeftError as error:
        answer = {"error": str(error)}
    assert answer.get("rc") != 0, answer
    assert CANARY not in repr(answer), answer


LEADING = {
    "a link in its place": "mv sub old; ln -s {home} sub",
    "a link above it": "mkdir -p x; mv sub x/; mv x/sub x/old; ln -s {home} x/sub; ln -s x/sub sub",
    "a relative link": "mv sub old; ln -s ../home/owner sub",
    "a link to a link of the person": "mv sub old; ln -s ../theirs sub",
}


@pytest.mark.parametrize("what", share(list(LEADING), test=2))
def test_no_turn_works_in_what_an_agent_led_its_workspace_to(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    home = with_home(tmp_path / "home/owner")
    (tmp_path / "theirs").symlink_to(home)
    (project / "sub").mkdir()
    assert weft("session", "create", "inner", "--model", "fast").code == 0
    for setting in ("toolset=worker", f"workspace={project / 'sub'}"):
        assert weft("session", "configure", "inner", "--set", setting).code == 0
    assert begin(weft, running(LEADING[what].format(home=home))) == []
    monkeypatch.setenv("WEFT_LEDGER", str(project / ".weft/ledger.db"))
    monkeypatch.chdir(tmp_path)  # what is sent from a folder that is trusted for work is done there
    with serving(calling("read", path="letters/to-a-friend.txt"), chat()) as server:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft("send", "--session", "inner", "Begin")
    assert CANARY not in repr(server.received)
    assert "in a folder that agents work in" in sent.err
    assert weft("undo", "talk").code == 0
    begin(weft, calling("list", path="."), session="inner")


def test_a_link_of_the_person_leads_to_a_workspace(weft: Shell, project: Path, tmp_path: Path) -> None:  # noqa: F811
    """Also one in a folder that agents work in, to another place in there."""
    (project / "sub").mkdir()
    (project / "current").symlink_to("sub")
    (tmp_path / "theirs").symlink_to(project)
    assert begin(weft, running("true")) == []
    for place in (tmp_path / "theirs", project / "current", tmp_path / "theirs/current"):
        assert weft("session", "configure", "talk", f"--set=workspace={place}").code == 0
        begin(weft, calling("list", path="."))
