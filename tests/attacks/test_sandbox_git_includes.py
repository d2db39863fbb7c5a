"""An agent that writes a file of settings which the person's git includes: from the repository, or from their home."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import agent_does, make_repository, person_git
from weft.runtime.sandbox.git_settings import IncludedFile, included_files
from weft.runtime.sandbox.git_view import GitGuard
from weft.runtime.sandbox.processes import Ending

SHARED = "[user]\n\tname = x\n"
OF_REPOSITORY = {
    "a missing one": ("../shared", {}, "shared"),
    "one in a missing folder": ("../conf/deep/shared", {}, "conf/deep/shared"),
    "one that an included one includes": ("../shared", {"shared": "[include]\npath = local\n"}, "local"),
    "one from the home folder": ("~/../repository/shared", {}, "shared"),
    "one behind a link": ("../conf/shared", {"real/shared": SHARED, "conf": "-> real"}, "real/shared"),
    "a missing one behind a link": ("../conf/shared", {"real/x": "", "conf": "-> real"}, "real/shared"),
    "one whose link is another": ("../conf/shared", {"real/shared": SHARED, "conf": "-> real"}, "more/shared"),
    "one in git's folder": ("extra", {".git/extra": SHARED}, ".git/extra"),
    "a missing one in git's folder": ("extra", {}, ".git/extra"),
    "one of many ways": ("../below/../x/.././shared", {"x/y": ""}, "shared"),
    "one that is a link to nothing": ("../shared", {"shared": "-> nothing"}, "nothing"),
}


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def put(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            place.symlink_to(text.removeprefix("-> "))
        else:
            place.write_text(text)


def write(path: str) -> str:
    """By hand, and in place of what is there."""
    return f"""
        mkdir -p "$(dirname {path})"
        printf "$SETTINGS" > {path}
        printf "$SETTINGS" > "{path}~"
        mv -f "{path}~" {path}
        rm -f conf 2>/dev/null && mkdir -p more && printf "$SETTINGS" > more/shared && ln -s more conf
        true
    """


@pytest.mark.parametrize("what", OF_REPOSITORY)
def test_a_file_that_the_repository_includes_takes_no_program(person: Person, what: str) -> None:
    included, files, path = OF_REPOSITORY[what]
    put(person.repository, files)
    person_git(person.repository, "config", "includeIf.onbranch:topic.path", included)
    tried(person, write(path))
    person_git(person.repository, "checkout", "-q", "-B", "topic", is_plain=True)
    person.ensure_unharmed()


OF_HOME = {
    "one in the workspace": ("[include]\n\tpath = {repository}/shared\n", "shared"),
    "one for such folders": ('[includeIf "gitdir:~/"]\n\tpath = {repository}/shared\n', "shared"),
    "one by a relative path": ("[include]\n\tpath = {relative}/shared\n", "shared"),
    "one that an included one includes": ("[include]\n\tpath = more\n", "shared"),
    "one behind a link of the home folder": ("[include]\n\tpath = ~/link/shared\n", "shared"),
}


@pytest.mark.parametrize("what", OF_HOME)
@pytest.mark.parametrize("name", [".gitconfig", ".config/git/config"])
def test_a_file_that_the_person_includes_takes_no_program(person: Person, what: str, name: str) -> None:
    text, path = OF_HOME[what]
    more = "[include]\n\tpath = ~/../repository/shared\n"
    relative = os.path.relpath(person.repository, (person.home / name).parent)
    text = text.format(repository=person.repository, relative=relative)
    put(person.home, {name: text, "link": f"-> {person.repository}"})
    put((person.home / name).parent, {"more": more})
    tried(person, write(path))
    person.ensure_unharmed()
    (person.repository / path).write_text(SHARED)
    tried(person, write(path))
    assert (person.repository / path).read_text() == SHARED


@pytest.mark.parametrize("name", [".gitconfig", ".config/git/config"])
def test_a_home_folder_that_is_the_workspace_gets_no_settings(person: Person, name: str) -> None:
    tried(person, write(name), person.home)
    person.ensure_unharmed()
    (person.home / name).parent.mkdir(parents=True, exist_ok=True)
    (person.home / name).write_text(SHARED)
    tried(person, write(name), person.home)
    assert (person.home / name).read_text() == SHARED


@pytest.mark.parametrize("place", ["tree", "below"])
def test_a_file_in_the_folder_of_another_tree_takes_no_program(person: Person, place: str) -> None:
    """The workspace is a second working tree, or lies in the repository: git's folder lies outside of it."""
    workspace = person.repository / place
    if place == "tree":
        workspace = person.top / "tree"
        person_git(person.repository, "worktree", "add", "-q", str(workspace))
    put(person.repository / ".git", {"extra": SHARED})
    person_git(person.repository, "config", "include.path", "extra")
    person_git(person.repository, "config", "--add", "include.path", "missing")
    for name in ("extra", "missing"):
        tried(person, f'cd "$(git rev-parse --git-common-dir)" && {write(name)}', workspace)
        person.ensure_unharmed(workspace, person.repository)
    assert (person.repository / ".git/extra").read_text() == SHARED


def test_an_included_file_that_was_missing_ends_the_command_that_makes_it(person: Person) -> None:
    """It does not wait for the command's end: the person may work meanwhile. What names no program stays."""
    person_git(person.repository, "config", "include.path", "../shared")
    outcome = tried(person, 'printf "$SETTINGS\\tquotePath = true\\n" > shared; sleep 60')
    assert outcome.ending is Ending.UNCOVERED
    assert outcome.git.taken_away == ("shared: core.fsmonitor",)
    assert person_git(person.repository, "config", "core.quotePath") == "true"


def test_an_included_file_that_the_person_changes_meanwhile_ends_the_command(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the cover away where the person's editor replaces the file. The attacker waits for just that;
    the next look at the cover is paused until it has written."""
    put(person.repository, {"shared": SHARED})
    person_git(person.repository, "config", "include.path", "../shared")
    started, is_intact = person.repository / "started", GitGuard.is_intact

    def is_intact_later(guard: GitGuard) -> bool:
        return "fsmonitor" not in (person.repository / "shared").read_text() or is_intact(guard)

    monkeypatch.setattr(GitGuard, "is_intact", is_intact_later)

    def change() -> None:
        while not started.exists():
            time.sleep(0.01)
        (person.repository / "edited").write_text(SHARED + "[core]\n\tquotePath = true\n")
        (person.repository / "edited").replace(person.repository / "shared")

    thread = threading.Thread(target=change)
    thread.start()
    waiting = "touch started; until grep -q quotePath shared; do sleep 0.02; done"
    outcome = tried(person, f'{waiting}; printf "$SETTINGS" >> shared; sleep 60')
    thread.join()
    assert outcome.ending is Ending.UNCOVERED
    assert outcome.git.taken_away == ("shared: core.fsmonitor",)
    assert person_git(person.repository, "config", "user.name", is_plain=True) == "x"
    assert person_git(person.repository, "config", "core.quotePath") == "true"
    person.ensure_unharmed()


def test_a_file_that_a_repository_of_another_name_includes_takes_no_program(person: Person) -> None:
    shared = person.repository / "shared"
    person_git(person.repository, "init", "-q", "shared.tmp")
    (person.repository / "shared.tmp/.git").rename(shared)
    for name in ("here", "missing"):
        person_git(shared, "config", "--file", "config", "--add", "include.path", f"../{name}")
    put(person.repository, {"here": SHARED})
    for name in ("here", "missing"):
        tried(person, write(name))
        assert "fsmonitor" not in (person.repository / "here").read_text()
    assert "fsmonitor" not in (person.repository / "missing").read_text()
    assert agent_does(person.repository, "git config --file shared/config user.name y && cat shared/config")


def test_a_link_to_an_included_file_is_put_back(person: Person) -> None:
    put(person.repository, {"real/shared": SHARED, "conf": "-> real"})
    person_git(person.repository, "config", "include.path", "../conf/shared")
    outcome = tried(person, 'mkdir evil; printf "$SETTINGS" > evil/shared; ln -sfn evil conf; sleep 60')
    assert outcome.ending is Ending.UNCOVERED
    assert os.readlink(person.repository / "conf") == "real"
    assert outcome.git.taken_away == ("conf",)


def test_work_goes_on_where_something_is_included(person: Person) -> None:
    put(person.repository, {"real/shared": SHARED, "conf": "-> real"})
    person_git(person.repository, "config", "include.path", "../conf/shared")
    person_git(person.repository, "config", "--add", "include.path", "../missing/shared")
    put(person.home, {".gitconfig": "[include]\n\tpath = elsewhere\n"})
    tried(person, "true")
    assert (
        agent_does(person.repository, "echo x > real/new; git add real/new; git commit -qm x; ls real") == "new\nshared"
    )


def test_the_files_are_those_that_git_names(tmp_path: Path) -> None:
    """As `git config --show-origin` lists them."""
    home, repository = tmp_path / "home", make_repository(tmp_path / "repository")
    put(
        home,
        {
            ".gitconfig": f'[include]\npath = one\n[includeIf "gitdir:{repository}/"]\npath = ~/two\n',
            "one": f"[a]\nb = 1\n[include]\npath = {tmp_path}/three\n", "two": "[a]\nb = 2\n",
        },
    )  # fmt: skip
    put(tmp_path, {"three": "[a]\nb = 3\n"})
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
    words = ["git", "config", "--show-origin", "--name-only", "--list", "-z", "--global", "--includes"]
    listed = subprocess.run(words, cwd=repository, env=environment, capture_output=True, text=True, check=True).stdout
    origins = {name.removeprefix("file:") for name in listed.split("\0") if name.startswith("file:")}
    files = list(included_files([str(home / ".gitconfig")], lambda folder: True, home))
    assert {file.file for file in files} == {str(Path(origin).resolve()) for origin in origins}


def test_another_spelling_is_the_same_file_where_the_file_system_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file system takes the name that is there for each spelling of it."""
    put(tmp_path, {"config": f"[include]\npath = {tmp_path}/WORK/shared\n", "Work/Shared": SHARED})
    lstat = os.lstat

    def folding(path: str) -> os.stat_result:
        place = tmp_path if path.startswith(f"{tmp_path}/") else Path("/")
        for part in Path(path).relative_to(place).parts:
            names = [name for name in os.listdir(place) if name.casefold() == part.casefold()]
            place /= names[0] if names else part
        return lstat(place)

    monkeypatch.setattr(os, "lstat", folding)
    (included,) = included_files([str(tmp_path / "config")], lambda folder: folder.startswith(f"{tmp_path}/Work"), None)
    assert included.path == f"{tmp_path}/WORK/shared"
    assert included.file == f"{tmp_path}/Work/Shared"


def test_an_included_file_that_goes_round_in_circles_is_followed_to_an_end(tmp_path: Path) -> None:
    put(tmp_path, {"a": "[include]\npath = b\n", "b": "[include]\npath = a\n", "c": "-> c"})
    (tmp_path / "d").write_text("[include]\npath = c\npath = a\n")
    files = list(included_files([str(tmp_path / "d")], lambda folder: folder == str(tmp_path), None))
    assert {file.path for file in files} == {str(tmp_path / name) for name in "abcd"}
    assert all(isinstance(file, IncludedFile) for file in files)


def test_the_person_sees_no_program_while_the_command_still_runs(person: Person) -> None:
    """The attacker begins when the sandbox is made; the person's git comes as soon as the command was ended."""
    person_git(person.repository, "config", "include.path", "../shared")
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set() and not (person.repository / "started").exists():
            time.sleep(0.01)
        ended.wait(30)
        person.works()

    thread = threading.Thread(target=look)
    thread.start()
    outcome = tried(person, 'touch started; printf "$SETTINGS" > shared; sleep 60')
    ended.set()
    thread.join()
    assert outcome.ending is Ending.UNCOVERED
    assert not person.canary.exists()
