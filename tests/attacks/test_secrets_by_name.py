"""A model reads with `read` and `grep` what is hidden from its commands: under names that the approval policy does not
know, through links, and after a command gave the folder of it another name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attacks.test_folders_for_work import (
    _machine,  # noqa: F401 - a fixture
    begin,
    calling,
    folder,  # noqa: F401 - a fixture
    project,  # noqa: F401 - a fixture
    running,
    weft,  # noqa: F401 - a fixture
    weft_ledger,
)
from tests.surfaces.shell import Shell

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


@pytest.mark.parametrize("case", CASES)
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
