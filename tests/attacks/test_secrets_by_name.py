"""A model reads with `read` and `grep` what is hidden from its commands: under names that the approval policy does not
know, through links, and after a command gave the folder of it another name. It changes it with `write` and `edit`, and
has `edit` tell, before anybody is asked, whether a guess stands there."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    refusing,
    running,
    weft,  # noqa: F401 - a fixture
    weft_ledger,
)
from tests.runtime.scripted import Script, chat
from tests.sizes import share
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from weft.ledger.api import Approval
from weft.runtime.tool.tool_contract import ToolFailure
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import EditArguments, EditTool, WriteArguments, WriteTool

ON_DISK = True  # no sandbox takes a workspace in memory
WORD = "word-of-a-file-5d1c"


def _linked(place: Path) -> None:
    (place / "settings").mkdir()
    (place / "settings/real").write_text(WORD)
    (place / ".env").symlink_to("settings/real")


def _left_by_an_editor(place: Path) -> None:
    for name in (".netrc~", "#.env#"):
        (place / name).write_text(WORD)


def _of_a_folder(place: Path) -> None:
    (place / ".docker").mkdir()
    (place / ".docker/config.json").write_text(WORD)


def _named_by_the_person(place: Path) -> None:
    settings = place.parent / "home/.config/weft/sandbox.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text('secret_files = ["deploy/token"]\n')
    (place / "deploy").mkdir()
    (place / "deploy/token").write_text(WORD)


CASES: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "through a link": (_linked, "true", (".env", "settings/real")),
    "as an editor leaves it": (_left_by_an_editor, "true", (".netrc~", "#.env#")),
    "in a folder of another name": (_of_a_folder, "mv .docker docker", ("docker/config.json",)),
    "of a name that the person gave": (_named_by_the_person, "true", ("deploy/token",)),
}


@pytest.mark.parametrize("case", share(list(CASES), test=2))
def test_what_is_hidden_from_commands_no_other_tool_shows_unasked(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    case: str,
) -> None:
    make, command, paths = CASES[case]
    make(project)
    calls = [calling("read", path=path) for path in paths]
    named = [calling("grep", path=path, pattern="word") for path in paths]
    asked = begin(weft, running(command), *calls, *named, calling("grep", pattern="word"))
    assert [approval.tool for approval in asked] == ["read"] * len(paths) + ["grep"] * len(paths)
    assert {approval.rationale for approval in asked} == {
        f"{approval.subjects[0]} may hold secrets" for approval in asked if approval.subjects
    }
    with weft_ledger(weft) as ledger:
        head = ledger.session("talk").head
        assert head is not None
        assert WORD not in str(ledger.turn(head))


def test_a_link_of_a_secrets_name_is_asked_about_before_any_command_ran(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
) -> None:
    _linked(project)
    assert [approval.subjects for approval in begin(weft, calling("read", path=".env"))] == [("settings/real",)]


def _told(weft: Shell, *scripts: Script) -> tuple[list[Approval], list[str]]:  # noqa: F811
    """What was asked about a turn of these calls, all of which is refused, and what the model was told of them."""
    with serving(*scripts, chat()) as server, refusing(weft) as asked:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        assert weft("send", "--session", "talk", "Begin").code == 0
        messages = [received.body for received in server.received if received.body][-1]["messages"]
    return asked, [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("case", share(list(CASES), test=2))
def test_what_is_hidden_from_commands_is_not_changed_unasked(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    case: str,
) -> None:
    make, command, paths = CASES[case]
    make(project)
    edits = [calling("edit", path=path, old_text=WORD, new_text="gone") for path in paths]
    writes = [calling("write", path=path, content="gone") for path in paths]
    asked = begin(weft, running(command), *edits, *writes)
    assert [approval.tool for approval in asked] == ["edit"] * len(paths) + ["write"] * len(paths)


GUESSES: dict[str, dict[str, Any]] = {
    "with other white space": {"old_text": f" {WORD[:6]}", "new_text": "x"},
    "of something that stands there more than once": {"old_text": "o", "new_text": "x"},
    "that changes nothing": {"old_text": WORD[:6], "new_text": WORD[:6]},
    "whose outcome is too large": {"old_text": "w", "new_text": "x" * 200_000, "replace_all": True},
}


@pytest.mark.parametrize(("guess", "is_trusted"), share(list(product(GUESSES, (False, True))), test=3))
def test_no_edit_tells_what_stands_in_a_file_of_secrets(
    weft: Shell,  # noqa: F811
    project: Path,  # noqa: F811
    guess: str,
    is_trusted: bool,
) -> None:
    (project / ".env").write_text(f"{WORD}\n" * 200)
    if not is_trusted:
        assert weft("trust", ".", "--revoke", "--work").code == 0
        assert weft("session", "configure", "talk", "--set", f"workspace={project}").code == 0
    right = GUESSES[guess]
    wrong = {**right, "old_text": "q7"}
    asked, results = _told(weft, calling("edit", path=".env", **right), calling("edit", path=".env", **wrong))
    assert [approval.subjects for approval in asked] == [(".env",)] * 2
    assert results[0] == results[1]
    assert (project / ".env").read_text() == f"{WORD}\n" * 200


def test_how_long_a_change_is_to_be_shown_tells_nothing_of_a_file_of_secrets(tmp_path: Path) -> None:
    content = "x" * 100_000
    (tmp_path / ".env").write_text(f"{WORD}\nb\n")
    tool = WriteTool(WorkspaceFolder(tmp_path))
    right, wrong = (
        tool.plan_of(WriteArguments(path=".env", content=f"{line}\n{content}\n"))
        for line in (WORD, WORD.replace("5d1c", "5d1e"))
    )
    assert len(right.shown) == len(wrong.shown)
    assert len(right.exact["lines"]) == len(wrong.exact["lines"])


def test_what_may_not_be_read_is_not_edited(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(WORD)
    tool = EditTool(WorkspaceFolder(tmp_path), may_read=lambda path: path != "people.csv")
    told = set()
    for text in (WORD[:4], "q7"):
        with pytest.raises(ToolFailure) as failure:
            tool.plan_of(EditArguments(path="people.csv", old_text=text, new_text="x"))
        told.add(str(failure.value))
    assert told == {"'people.csv' may not be read, so no text in it is replaced"}
