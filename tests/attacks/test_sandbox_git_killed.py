"""An agent whose weft is killed before it could look at what the agent had left for the person's git."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from tests.attacks.git_person import NESTED, KilledAgent, Person
from tests.runtime.sandbox.repositories import agent_runs, make_repository, person_git
from tests.sizes import share
from weft.kernel.errors import StoreFailed
from weft.runtime.sandbox import leftovers
from weft.runtime.sandbox.git_settings import GitLeftovers
from weft.runtime.sandbox.leftovers import CommandNote, CommandNotes, StartTime
from weft.store.replicas import process_owner


@pytest.fixture
def killed(tmp_path: Path) -> KilledAgent:
    return KilledAgent(Person(tmp_path))


SCRIPTS = {
    "a nested repository": NESTED + 'git -C n config core.fsmonitor "$PROGRAM"',
    "in fetched files": f"mkdir node_modules; cd node_modules\n{NESTED.replace('add n', 'add -f n')}"
    'git -C n config core.fsmonitor "$PROGRAM"',
    "settings that are not obeyed yet": 'printf "$SETTINGS" > .git/config.worktree',
    "a folder of any name": NESTED
    + 'mv n/.git plain; echo "gitdir: ../plain" > n/.git; git config --file plain/config core.fsmonitor "$PROGRAM"',
}


@pytest.mark.slow("starts a process that is killed")
@pytest.mark.parametrize("what", SCRIPTS)
def test_what_a_command_left_whose_weft_was_killed_is_taken_away_by_the_next(killed: KilledAgent, what: str) -> None:
    killed.does(SCRIPTS[what])
    (sentence,) = killed.is_followed()
    assert f"a command in {killed.person.repository} was cut off" in sentence
    assert killed.is_followed() == ()
    person_git(killed.person.repository, "config", "extensions.worktreeConfig", "true")
    places = [killed.person.repository / name for name in (".", "n", "node_modules/n")]
    killed.person.ensure_unharmed(*(place for place in places if place.is_dir()))


def renamed(repository: Path) -> Path:
    return repository.rename(repository.with_name("renamed"))


def moved_with_the_folder_above(repository: Path) -> Path:
    above = repository.with_name("above")
    above.mkdir()
    return repository.rename(above / "repository")


def with_another_in_its_place(repository: Path) -> Path:
    place = renamed(repository)
    make_repository(repository, files={"file": "one\n"})
    return place


MOVES = (renamed, moved_with_the_folder_above, with_another_in_its_place)


@pytest.mark.slow("starts a process that is killed")
@pytest.mark.parametrize(
    ("move", "follows"), share(list(product(MOVES, ("in it", "in a folder of it", "above it"))), test=2)
)
def test_what_a_killed_command_left_is_taken_away_in_a_workspace_of_another_name(
    killed: KilledAgent, move: Callable[[Path], Path], follows: str
) -> None:
    old = killed.person.repository
    killed.does(SCRIPTS["a nested repository"] + "; mkdir x")
    place = move(old)
    if old.exists():
        person_git(old, "config", "core.fsmonitor", "mine")
    assert CommandNotes(killed.commands).clean_up() == (), "nobody knows yet where it is"
    assert tuple(CommandNotes(killed.commands).interrupted()) == ()
    if old.exists():
        assert person_git(old, "config", "core.fsmonitor") == "mine"
    start = {"in it": place, "in a folder of it": place / "x", "above it": killed.person.top}[follows]
    if follows != "above it":
        (sentence,) = agent_runs(start, "true", commands=killed.commands, home=killed.person.home).git.interrupted
    else:
        commands = CommandNotes(killed.commands).clean_up(str(start))
        ((sentence,),) = (command.sentences for command in commands)
    assert f"a command in {place} was cut off" in sentence
    assert CommandNotes(killed.commands).clean_up(str(start)) == ()
    killed.person.ensure_unharmed(place, place / "n")


@pytest.mark.slow("starts a process that is killed")
def test_a_workspace_that_was_removed_is_waited_for_by_its_folder_alone(killed: KilledAgent) -> None:
    """Its number is given to the next folder that is made, whose settings are the person's."""
    old = killed.person.repository
    killed.does(SCRIPTS["a nested repository"])
    subprocess.run(["rm", "-rf", old], check=True)
    make_repository(old, files={"file": "one\n"})
    person_git(old, "config", "core.fsmonitor", "mine")
    notes = CommandNotes(killed.commands)
    for place in (None, str(old), str(old.parent), str(old)):
        assert notes.clean_up(place) == ()
    assert notes.running_since(str(old)) is None
    assert person_git(old, "config", "core.fsmonitor") == "mine"


@pytest.mark.slow("starts a process that is killed")
def test_settings_that_the_person_had_stay_after_a_kill(killed: KilledAgent) -> None:
    """Also those that they changed since."""
    repository = killed.person.repository
    inner = make_repository(repository / "inner", files={"file": "one\n"})
    person_git(repository, "init", "-q", "--bare", "shared")
    for folder in (repository, inner, repository / "shared"):
        person_git(folder, "config", "alias.mine", "log")
    killed.does("git push -q ./shared main; touch inner/.git/new .git/new")
    person_git(repository, "config", "alias.other", "status")
    assert killed.is_followed() == ()
    for folder in (repository, inner, repository / "shared"):
        assert person_git(folder, "config", "alias.mine") == "log"
    assert person_git(repository, "config", "alias.other") == "status"


@pytest.mark.slow("starts a process that is killed")
def test_a_workspace_in_a_repository_is_looked_after_too(killed: KilledAgent) -> None:
    repository = killed.person.repository
    killed.does('cd $(git rev-parse --git-common-dir) && printf "$SETTINGS" > config.worktree', repository / "below")
    (note,) = CommandNotes(killed.commands).interrupted()
    assert note.workspace == str(repository / "below")
    (sentence,) = killed.is_followed()
    assert ".git/config.worktree: core.fsmonitor" in sentence


def test_a_command_that_ended_leaves_no_note_and_one_that_runs_is_left_alone(tmp_path: Path) -> None:
    notes = CommandNotes(tmp_path / "commands")
    assert agent_runs(tmp_path, "true", commands=tmp_path / "commands").succeeded
    assert list((tmp_path / "commands").iterdir()) == []
    running = notes.write(note_of("/work/here", 50.0))
    assert notes.clean_up() == tuple(notes.interrupted()) == ()
    assert notes.running_since("/work/here/below") == notes.running_since("/work") == 49.0
    assert notes.running_since("/work/elsewhere") is None
    running.close()
    assert [command.workspace for command in notes.interrupted()] == ["/work/here"]
    assert [command.workspace for command in notes.clean_up()] == ["/work/here"]
    assert notes.clean_up() == ()


def test_only_the_very_process_that_was_noted_is_ended(tmp_path: Path) -> None:
    """Numbers of processes and of their namespaces are given out again."""
    notes = CommandNotes(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen(["sleep", "60"]) as noted:
        owner = process_owner(other.pid)
        note = notes.write(note_of("/work/here", 1.0))
        note.add_process(noted.pid)
        note.close()
        (path,) = tmp_path.glob("*.json")
        text = path.read_text()
        boot, rest = owner.split(".", 1)
        for changed in (f"{owner[:-1]}{(int(owner[-1]) + 1) % 10}", f"{boot[::-1]}.{rest}"):
            (tmp_path / "again.json").write_text(text.replace(process_owner(noted.pid), changed))
            path.unlink(missing_ok=True)
            assert len(notes.clean_up()) == 1
            assert other.poll() is None
        (tmp_path / "again.json").write_text(text)
        assert len(notes.clean_up()) == 1
        assert noted.wait() == -signal.SIGKILL
        other.kill()


def test_a_note_of_a_disk_that_is_not_there_waits_for_it(tmp_path: Path) -> None:
    notes, place = CommandNotes(tmp_path / "commands"), str(tmp_path / "workspace")
    here = StartTime.now(str(tmp_path))
    elsewhere = structs.replace(here, device=here.device and here.device + 1)
    for started in (here, elsewhere):
        notes.write(structs.replace(note_of(place, 1.0), written={place: started})).close()
    assert len(notes.clean_up()) == 1
    assert len(list(notes.interrupted())) == 1
    (tmp_path / "workspace").mkdir()
    assert len(notes.clean_up()) == 1


def test_a_path_that_is_no_text_is_noted(tmp_path: Path) -> None:
    notes, name = CommandNotes(tmp_path), os.fsdecode(b"/work/\xff")
    notes.write(note_of(name, 1.0)).close()
    assert [command.workspace for command in notes.clean_up()] == [name]


def test_a_note_that_cannot_be_read_stops_commands_and_says_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(StoreFailed, match=r"x\.json"):
        CommandNotes(tmp_path).clean_up()


def test_a_note_that_cannot_be_followed_stops_commands_in_its_own_workspace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = CommandNotes(tmp_path / "commands")
    for place in ("/work/bad", "/work/good"):
        notes.write(note_of(place, 1.0)).close()
    take_away = leftovers._take_away

    def refused(note: CommandNote) -> GitLeftovers:
        if note.workspace == "/work/bad":
            raise PermissionError(13, "Permission denied", "/work/bad/x")
        return take_away(note)

    monkeypatch.setattr(leftovers, "_take_away", refused)
    commands = notes.clean_up()
    assert [command.workspace for command in notes.interrupted()] == ["/work/bad"]
    for command in commands:
        command.ensure_cleaned("/work/good")
    with pytest.raises(StoreFailed, match="/work/bad/x: Permission denied"):
        next(command for command in commands if command.failure).ensure_cleaned("/work/bad/below")
    sentences = [sentence for command in commands for sentence in command.sentences]
    assert any("what it left is still there" in sentence for sentence in sentences)


def test_while_a_command_runs_what_it_wrote_is_not_taken_for_the_persons(tmp_path: Path) -> None:
    """Two commands at once: the second one begins while the first one's program is in a repository, and writes another
    one there. What it puts back is not the first one's."""
    person = Person(tmp_path)
    person_git(person.repository, "init", "-q", "--bare", "shared")
    config = person.repository / "shared/config"
    running = CommandNotes(tmp_path / "commands").write(note_of(str(person.repository), 0.0))
    config.write_text(config.read_text() + "[core]\n\tfsmonitor = first\n[alias]\n\tx = first\n")
    outcome = agent_runs(
        person.repository, "git config --file shared/config core.fsmonitor second", commands=tmp_path / "commands"
    )
    running.remove()
    assert outcome.git.taken_away == ("shared/config: core.fsmonitor", "shared/config: alias.x")
    assert "first" not in config.read_text()
    assert "second" not in config.read_text()


def note_of(workspace: str, seconds: float) -> CommandNote:
    return CommandNote(
        workspace=workspace,
        seconds=seconds,
        written={},
        folders=(),
        odd=(),
        missing=(),
        links={},
        unseen=(),
        temporary=None,
    )
