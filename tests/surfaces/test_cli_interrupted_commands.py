"""What the command line does about commands in the sandbox whose weft was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.attacks.git_person import NESTED, KilledAgent, Person
from tests.sizes import share
from tests.surfaces.shell import Shell
from weft.surfaces.cli.work.sandbox_access import command_notes


@pytest.fixture
def place() -> Iterator[Path]:
    """Where workspaces can be: not in memory, as the folders of these tests."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow("starts a process that is killed")
@pytest.mark.parametrize("words", share([("undo",), ("sandbox", "run", "--", "true")], test=1))
def test_weft_says_what_it_takes_away_and_the_doctor_what_it_would(
    weft: Shell, words: tuple[str, ...], place: Path
) -> None:
    weft.record("ask", session="main")
    killed = KilledAgent(Person(place))
    killed.commands = command_notes()
    killed.does(NESTED + 'git -C n config core.fsmonitor "$PROGRAM"')
    for _ in range(2):
        assert f"a command in {killed.person.repository}, begun at " in weft("doctor").out
    assert "fsmonitor" in (killed.person.repository / "n/.git/config").read_text()
    assert "core.fsmonitor" in weft(*words).err
    assert "fsmonitor" not in (killed.person.repository / "n/.git/config").read_text()
    assert "was cut off" not in weft("doctor").out
