"""An agent that hides a repository deeper than a path is long, behind closed folders, or behind a link that appears
while Weft looks."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import structs

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import agent_runs, make_repository, person_git
from weft.kernel.errors import InvalidInput
from weft.runtime.opened_folders import READ_FOLDER_FLAGS, Descent, visit_folders
from weft.runtime.sandbox import leftovers as leftovers_module
from weft.runtime.sandbox.git_leftovers import ChangedGit, disarm_repositories
from weft.runtime.sandbox.git_settings import GitLeftovers
from weft.runtime.sandbox.git_view import GitGuard
from weft.runtime.sandbox.leftovers import ChangedFiles, StartTime

NOBODY = 65534
NAME = "d" * 100
MOVED_DOWN = f"""
    git init -q r
    git -C r commit -q --allow-empty -m r
    printf "$SETTINGS" > r/.git/config
    cat > down.py <<'END'
import os
import resource
top = os.getcwd()
for _ in range(45):
    os.mkdir("{NAME}")
    os.chdir("{NAME}")
os.rename(top + "/r", "r")
END
    python3 down.py
"""
MOVED_UP = f"""
    cat > up.py <<'END'
import os
import resource
top = os.getcwd()
for _ in range(20):
    os.chdir("{NAME}")
os.rename("{NAME}", top + "/near")
END
    python3 up.py
"""


@pytest.fixture
def person(tmp_path: Path) -> Iterator[Person]:
    yield Person(tmp_path)
    shutil.rmtree(tmp_path / "repository", ignore_errors=True)


@pytest.fixture
def open_person() -> Iterator[Person]:
    """In a folder that somebody else can reach, too."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Person(Path(folder))


def test_a_repository_that_lies_deeper_than_a_path_is_long_is_cleaned(person: Person) -> None:
    """The next command moves it up, where a person's git comes to it."""
    for script in (MOVED_DOWN, MOVED_UP):
        assert tried(person, script).succeeded
    place = person.repository / "near" / "/".join([NAME] * 24) / "r"
    assert place.is_dir()
    person.ensure_unharmed(place)


def test_a_link_that_appears_on_the_way_leads_no_look_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command puts it there, after the folder was listed and before what lies in it is opened."""
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for top in (workspace / "a", outside):
        (top / "b").mkdir(parents=True)
    started = StartTime.now(str(workspace))
    for top in (workspace / "a", outside):
        (top / "b/x").write_text("")
        (top / "b/x").chmod(0o4755)
    is_enterable = leftovers_module._is_enterable

    def replaced(folder: int, name: str, *words: object) -> bool:
        answer = is_enterable(folder, name, *words)  # type: ignore[arg-type]
        if name == "b":
            (workspace / "a").rename(workspace / "moved")
            (workspace / "a").symlink_to(outside)
        return answer

    monkeypatch.setattr(leftovers_module, "_is_enterable", replaced)
    ChangedFiles(str(workspace), started).remove_privileges()
    assert stat.S_IMODE((outside / "b/x").stat().st_mode) == 0o4755
    assert stat.S_IMODE((workspace / "moved/b/x").stat().st_mode) == 0o755


def test_no_depth_ends_a_walk_and_no_walk_holds_many_folders_open(tmp_path: Path) -> None:
    folder = os.open(tmp_path, READ_FOLDER_FLAGS)
    for _ in range(300):
        for name in ("a", "b"):
            os.mkdir(name, dir_fd=folder)
        inner = os.open("b", READ_FOLDER_FLAGS, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    top, most, count = os.open(tmp_path, READ_FOLDER_FLAGS), 0, 0
    before = len(os.listdir("/proc/self/fd"))
    failures = list[str]()
    for visited in visit_folders(top, lambda path, error: failures.append(path)):
        visited.inner = sorted(os.listdir(visited.descriptor))
        count += 1
        most = max(most, len(os.listdir("/proc/self/fd")) - before)
    os.close(top)
    assert (count, failures) == (601, [])
    assert most < 70


def test_a_folder_that_is_moved_while_it_is_walked_through_ends_no_walk(tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["b"] * 80)
    deep.mkdir(parents=True)
    (tmp_path / "a").mkdir()
    moved = tmp_path / "/".join(["b"] * 75)
    top = os.open(tmp_path, READ_FOLDER_FLAGS)
    failures, paths = list[str](), list[str]()
    for visited in visit_folders(top, lambda path, error: failures.append(path)):
        paths.append(visited.path)
        visited.inner = sorted(os.listdir(visited.descriptor))
        if visited.path.count("b") == 80:
            moved.rename(tmp_path / "moved")
    os.close(top)
    assert failures == ["/".join(["b"] * 74)]
    assert paths[-1] == "a"


def test_git_s_folders_one_in_the_other_are_cleaned_in_few_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = StartTime.now(str(tmp_path))
    folder = os.open(tmp_path, READ_FOLDER_FLAGS)
    for _ in range(250):
        os.close(os.open("HEAD", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder))
        with open(os.open("config", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=folder), "w") as file:
            file.write("[core]\n\tfsmonitor = x\n")
        os.mkdir("bare.name", dir_fd=folder)
        inner = os.open("bare.name", READ_FOLDER_FLAGS, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    entered, enter = [0], Descent.enter

    def counted(descent: Descent, name: str) -> None:
        entered[0] += 1
        enter(descent, name)

    monkeypatch.setattr(Descent, "enter", counted)
    guard = GitGuard(tmp_path, is_read_only=True)
    changed = ChangedFiles(str(tmp_path), started).remove_privileges()
    view = structs.replace(guard.view, known={})
    leftovers = disarm_repositories(str(tmp_path), view, ChangedGit(changed={str(tmp_path): changed.repositories}))
    guard.close()
    assert len(leftovers.taken_away) == 250
    assert leftovers.not_cleaned == ()
    assert entered[0] < 1500
    shutil.rmtree(tmp_path / "bare.name", ignore_errors=True)


def cleaned_as_nobody(person: Person, guard: GitGuard, started: StartTime) -> GitLeftovers:
    """By a person who is no root, for whom nothing is closed."""
    top = str(person.repository)
    os.seteuid(NOBODY)
    try:
        changed = ChangedFiles(top, started).remove_privileges()
        return disarm_repositories(top, guard.view, ChangedGit(changed={top: changed.repositories}))
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else")
@pytest.mark.parametrize("mode", [0, 0o400, 0o555])
@pytest.mark.parametrize("closed", ["", "/logs", "/logs/refs", "/refs", "/refs/heads", "/hooks"])
def test_a_link_or_a_hook_in_a_closed_folder_is_taken_away(open_person: Person, closed: str, mode: int) -> None:
    person = open_person
    mine = person.home / ".bashrc"
    mine.write_text("mine")
    folder = make_repository(person.repository / "n", files={"a": "1"})
    os.chown(person.repository, NOBODY, NOBODY)
    guard = GitGuard(person.repository)
    started = StartTime.now(str(person.repository))
    places = [folder / ".git" / name for name in ("COMMIT_EDITMSG", "logs/x", "logs/refs/x", "refs/x", "refs/heads/x")]
    for place in places:
        place.unlink(missing_ok=True)
        place.symlink_to(mine)
    made = person.repository / "m"
    shutil.copytree(folder, made, symlinks=True)
    (made / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (made / ".git/hooks/pre-commit").chmod(0o755)
    for place in (folder, made, *folder.rglob("*"), *made.rglob("*")):
        os.chown(place, NOBODY, NOBODY, follow_symlinks=False)
    (folder / f".git{closed}").chmod(mode)
    (made / f".git{closed}").chmod(mode)
    leftovers = cleaned_as_nobody(person, guard, started)
    guard.close()
    assert leftovers.not_cleaned == ()
    for top in (folder, made):
        assert [place for place in top.rglob("*") if place.is_symlink()] == []
    assert not (made / ".git/hooks/pre-commit").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else")
def test_what_could_not_be_cleaned_is_named_and_looked_at_once_more(open_person: Person) -> None:
    """Another user's: the person can do nothing about it."""
    person = open_person
    os.chown(person.repository, NOBODY, NOBODY)
    guard = GitGuard(person.repository, is_read_only=True)
    started = StartTime.now(str(person.repository))
    folder = make_repository(person.repository / "n", files={"a": "1"})
    (folder / ".git/hooks/pre-commit").write_text("#!/bin/sh\n")
    (folder / ".git/hooks/pre-commit").chmod(0o755)
    leftovers = cleaned_as_nobody(person, guard, started)
    guard.close()
    assert "n/.git/hooks/pre-commit" in leftovers.not_cleaned
    assert leftovers.runs_by_itself == ()
    assert any("once more before the next command: n/.git/hooks" in text for text in leftovers.sentences(b""))


def test_what_could_not_be_cleaned_is_cleaned_before_the_next_command(
    person: Person, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def fails(source: Any, *words: Any, **folders: Any) -> None:
        if source == "pre-commit":
            raise PermissionError(1, "Operation not permitted")
        rename(source, *words, **folders)

    script = 'git init -q n; printf "#!/bin/sh\\n" > n/.git/hooks/pre-commit; chmod +x n/.git/hooks/pre-commit'
    with monkeypatch.context() as patches:
        patches.setattr(os, "rename", fails)
        first = agent_runs(person.repository, script, commands=tmp_path / "commands")
    assert first.git.not_cleaned == ("n/.git/hooks/pre-commit",)
    second = agent_runs(person.repository, "true", commands=tmp_path / "commands")
    assert not (person.repository / "n/.git/hooks/pre-commit").exists()
    assert any("n/.git/hooks/pre-commit" in text for text in second.git.interrupted)
    assert list((tmp_path / "commands").iterdir()) == []


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    """This process may open no more than most systems let a process open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def descriptors_beneath(folder: Path) -> int:
    """Of this folder and of what is in it: other descriptors of this process come and go by themselves."""
    links = Path("/proc/self/fd")
    places = [os.readlink(links / name) for name in os.listdir(links) if (links / name).is_symlink()]
    return sum(Path(place).is_relative_to(folder.resolve()) for place in places)


def make_repositories(top: Path, count: int) -> None:
    for number in range(count):
        folder = top / f"r{number:04d}/.git"
        for name in ("objects", "refs"):
            (folder / name).mkdir(parents=True)
        (folder / "HEAD").write_text("ref: refs/heads/main\n")
        (folder / "config").write_text("[core]\n\tbare = false\n")


@pytest.mark.slow("makes more repositories than a process may have files open")
def test_repositories_that_can_only_be_read_are_not_held_open(tmp_path: Path, few_descriptors: None) -> None:
    """So many were held that the command was refused."""
    make_repositories(tmp_path, 500)
    outcome = agent_runs(tmp_path, "echo works; touch r0499/.git/x r0063/.git/y; mv r0499 moved; touch moved/.git/z")
    assert outcome.stdout == b"works\n"
    assert (tmp_path / "r0063/.git/y").exists()
    assert not (tmp_path / "moved/.git/x").exists()
    assert not (tmp_path / "moved/.git/z").exists()
    told = {
        name: [text for text in outcome.git.sentences(outcome.stderr) if name in text] for name in ("r0150", "r0499")
    }
    assert "more than 64 repositories" in told["r0150"][0]
    assert "make a folder with fewer of them the workspace" in told["r0150"][0]
    assert "more than 200 repositories" in told["r0499"][1]


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else")
def test_repositories_of_another_user_are_not_held_open(open_person: Person) -> None:
    make_repositories(open_person.repository, 20)
    os.chown(open_person.repository, NOBODY, NOBODY)
    assert descriptors_beneath(open_person.repository) == 0
    os.seteuid(NOBODY)
    try:
        guard = GitGuard(open_person.repository)
    finally:
        os.seteuid(0)
    assert len(guard.view.odd) == 21
    assert descriptors_beneath(open_person.repository) < 10
    guard.close()
    assert descriptors_beneath(open_person.repository) == 0
    assert list(open_person.repository.glob("*/.git/commondir*")) == []


def test_a_limit_of_descriptors_that_is_hit_is_named(tmp_path: Path) -> None:
    make_repositories(tmp_path, 60)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = open_descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 200, hard))
    try:
        with pytest.raises(InvalidInput, match=f"{before + 200} files open") as raised:
            agent_runs(tmp_path, "true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert str(tmp_path) in str(raised.value)
    assert "ulimit -n" in str(raised.value.advice)
    assert open_descriptors() == before
    assert list(tmp_path.glob("*/.git/commondir*")) == []


@pytest.mark.slow("makes more repositories than are shown")
@pytest.mark.parametrize("count", [64, 210])
def test_no_number_of_repositories_shows_a_password(person: Person, count: int) -> None:
    """The uppermost ones are looked at first: the agent makes more of them than can be written."""
    place = make_repository(person.repository / "z/team/lib", files={"file": "one\n"})
    person_git(place, "remote", "add", "origin", "https://ada:secret-token@example.org/a.git")
    make_repositories(person.repository, count)
    outcome = tried(person, "cat z/team/lib/.git/config; touch z/team/lib/.git/x")
    assert b"secret-token" not in outcome.stdout
    assert not (place / ".git/x").exists()
    assert "secret-token" in (place / ".git/config").read_text()


def test_a_repository_of_which_a_part_is_a_link_shows_no_password(person: Person) -> None:
    place = make_repository(person.repository / "z", files={"file": "one\n"})
    person_git(place, "remote", "add", "origin", "https://ada:secret-token@example.org/a.git")
    (place / ".git/objects").rename(person.repository / "objects")
    (place / ".git/objects").symlink_to("../../objects")
    outcome = tried(person, "cat z/.git/config; touch z/.git/x; git -C z log --format=%s")
    assert b"secret-token" not in outcome.stdout
    assert b"example.org" in outcome.stdout
    assert b"first" in outcome.stdout
    assert not (place / ".git/x").exists()
