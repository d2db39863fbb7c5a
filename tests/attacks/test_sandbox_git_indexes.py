"""An agent that writes git's index itself, with names that lead a person's git out of the repository or into `.git`."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.attacks.git_person import Person, tried
from tests.runtime.sandbox.repositories import agent_does, agent_runs, make_repository, person_git
from weft.runtime.sandbox.git_repositories import (
    UnreadableIndex,
    hash_bytes_of,
    is_inner_name,
    is_usable_index,
    read_index_names,
)

WRITE = """
import hashlib, struct, subprocess, sys
def entry(name, mode=0o100755):
    entry = struct.pack(">10I", *[0] * 6, mode, *[0] * 3) + bytes.fromhex(blob) + struct.pack(">H", len(name)) + name
    return entry + bytes(8 - len(entry) % 8)
folder, name, text = sys.argv[1:]
words = ["git", "hash-object", "-w", "--stdin"]
blob = subprocess.run(words, input=text.encode(), capture_output=True, check=True).stdout.decode().strip()
data = b"DIRC" + struct.pack(">2I", 2, 1) + entry(name.encode())
open(folder + "/index", "wb").write(data + hashlib.sha1(data).digest())
"""


def written(name: str, folder: str = ".git") -> str:
    return f"python3 -c {shlex.quote(WRITE)} {folder} {shlex.quote(name)} 'text of the agent'"


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.mark.parametrize("command", [("checkout", "--", "."), ("restore", "."), ("commit", "-qam", "all")])
def test_an_index_leads_a_persons_git_to_no_file_of_theirs_elsewhere(person: Person, command: tuple[str, ...]) -> None:
    mine = person.home / ".bashrc"
    mine.write_text("mine")
    head = person_git(person.repository, "rev-parse", "HEAD")
    outcome = tried(person, written("../home/.bashrc"))
    assert outcome.succeeded
    words = ["git", "-c", "user.name=a", "-c", "user.email=b", *command]
    subprocess.run(words, cwd=person.repository, capture_output=True, check=False)
    assert mine.read_text() == "mine"
    assert "home/.bashrc" not in person_git(person.repository, "ls-files", "--full-name")
    assert any(".git/index: it named files" in sentence for sentence in outcome.git.sentences(b""))
    person_git(person.repository, "reset", head)
    assert person_git(person.repository, "status", "--short") == ""


@pytest.mark.parametrize("folder", ["n/.git", "plain"])
def test_an_index_of_a_repository_that_the_agent_made_writes_no_hook(person: Person, folder: str) -> None:
    script = "git init -q n; " + ("mv n/.git plain; echo 'gitdir: ../plain' > n/.git; " if folder == "plain" else "")
    tried(person, f"{script}\nGIT_DIR={folder} {written('.git/hooks/post-checkout', folder)}")
    assert not os.path.lexists(person.repository / folder / "index")


def test_an_index_that_is_a_second_name_of_a_file_is_looked_at_in_the_next_command(person: Person) -> None:
    tried(person, "ln .git/index notes 2>/dev/null || { cp .git/index notes; ln -f notes .git/index; }")
    tried(person, f"mkdir x\n{written('../home/.bashrc', 'x')}; cat x/index > notes")
    assert "home" not in person_git(person.repository, "ls-files")


def test_what_git_itself_writes_stays(person: Person) -> None:
    outcome = agent_runs(person.repository, "echo a > .gitignore; mkdir -p a/b; echo b > a/b/..c; git add .")
    assert outcome.succeeded
    assert not outcome.git.sentences(b"")
    assert ".gitignore" in agent_does(person.repository, "git ls-files")


@pytest.mark.parametrize("format_", ["sha1", "sha256"])
@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_index_that_git_writes_can_be_read(tmp_path: Path, version: str, format_: str) -> None:
    person_git(tmp_path, "init", "-q", "--object-format", format_)
    for name in ("a", "b/c", "b/cd", ".gitignore", "x" * 200 + "/" + "y" * 200, "git~1x", "\u00fcber"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    person_git(tmp_path, "add", "-A")
    person_git(tmp_path, "update-index", "--index-version", version)
    person_git(tmp_path, "update-index", "--skip-worktree", "a")
    person_git(tmp_path, "-c", "splitIndex.maxPercentChange=100", "update-index", "--split-index")
    (tmp_path / "b/c").write_text("other")
    person_git(tmp_path, "-c", "splitIndex.maxPercentChange=100", "add", "b/c")
    folder = os.open(tmp_path / ".git", os.O_RDONLY)
    try:
        names = [name for name in os.listdir(folder) if "index" in name]
        assert len(names) >= 2
        assert all(is_usable_index(folder, name, hash_bytes_of(format_)) for name in names)
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    "name",
    [
        b"../x", b"/x", b"a//b", b"a/./b", b".git/x", b"a/.GIT/x", b".g\xe2\x80\x8cit/x", b"git~1/x", b"GIT~1",
        b".git ./x", b".git::$INDEX_ALLOCATION/x", b"a\\.git\\x", b"", b".",
    ],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_known_in_each_spelling(name: bytes) -> None:
    assert not is_inner_name(name)


def test_names_of_files_stay(tmp_path: Path) -> None:
    assert all(map(is_inner_name, (b".gitignore", b"a/.gitmodules", b"git", b"...", b"a/..b", b"git~2", b"\xff")))


def test_entries_are_read_from_no_other_place_than_one_after_the_other(tmp_path: Path) -> None:
    """Git with several threads finds the entries by a table at the end."""
    make_repository(tmp_path, files={"a": "1", "b": "2"})
    data = (tmp_path / ".git/index").read_bytes()[:-20]
    entries = data.split(b"TREE")[0]
    for offset, is_right in ((12, True), (16, False)):
        table = b"IEOT" + (12).to_bytes(4, "big") + (1).to_bytes(4, "big") + offset.to_bytes(4, "big") + b"\0\0\0\2"
        whole = entries + table + bytes(20)
        if is_right:
            assert list(read_index_names(whole, 20)) == [b"a", b"b"]
        else:
            with pytest.raises(UnreadableIndex):
                list(read_index_names(whole, 20))
