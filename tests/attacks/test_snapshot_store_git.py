"""A store of snapshots that a stranger wrote to: git obeys its own folder, and a program named there would be run
outside of any sandbox by the next snapshot. Nothing of it is obeyed, and what does not belong there is named.

Each plant is tried twice: before the next snapshot, and after the store was looked at and before git is started, where
whoever plants it is always fast enough.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.resources.directories.folders import write
from weft.kernel.errors import Damaged, StoreFailed, WeftError
from weft.runtime.folder_snapshots.file_store import FileStore
from weft.runtime.sandbox.own_git import Git, PipedProcess

MORE_FILES_THAN_ONE_BY_ONE = 120
"""So many new files at once, and git is asked which of them it lacks: one that may fetch would fetch them."""


class Store:
    """A store that was used, the folder it keeps, and the file that a planted program would make."""

    def __init__(self, top: Path) -> None:
        self.folder, self.canary = top / "outer" / "work", top / "ran"
        self.elsewhere = top / "elsewhere"
        write(self.folder, {"file": "one", "more": "two", ".gitattributes": "* filter=planted diff=planted\n"})
        self.files = FileStore(top / "store")
        self.first = self.files.snapshot(self.folder).id
        self.files.snapshot(self.folder)
        self.repository = top / "store" / "git"
        self._top = top

    @property
    def command(self) -> str:
        return f"touch {shlex.quote(str(self.canary))}"

    @property
    def promisor(self) -> str:
        """A remote that git fetches missing objects from, and the program that it starts for that."""
        return (
            "[core]\n\trepositoryformatversion = 1\n\tbare = true\n"
            "[extensions]\n\tobjectformat = sha256\n\tpartialClone = planted\n"
            f'[remote "planted"]\n\turl = {self.repository}\n\tpromisor = true\n\tuploadpack = "{self.command};"\n'
        )

    @property
    def filter(self) -> str:
        return (
            f'[filter "planted"]\n\tclean = "{self.command}; cat"\n\trequired = true\n'
            f'[diff "planted"]\n\ttextconv = "{self.command}; cat"\n'
        )

    def append_settings(self, text: str) -> None:
        with open(self.repository / "config", "a") as file:
            file.write(text)

    def age_index(self) -> None:
        """Git compares the bytes of files that changed after the index was written, and filters them for that."""
        for index in (self._top / "store" / "folders").glob("*/index-*"):
            os.utime(index, (0, 0))

    def use(self) -> None:
        """What a broker does with a store, and a person with what it kept."""
        with suppress(StoreFailed):
            self.files.snapshot(self.folder)
        write(self.folder, {f"new/{number}": f"{number}" for number in range(MORE_FILES_THAN_ONE_BY_ONE)})
        with suppress(StoreFailed):
            second = self.files.snapshot(self.folder).id
            changes = self.files.changes(self.first, second)
            self.files.text_diff(changes[0])
            self.files.restore(self.first, self.folder)
        with suppress(WeftError):
            self.files.read("0" * 63 + "1", "file")
        with suppress(StoreFailed):
            self.files.pack()
            self.files.prune(lambda: [self.first])


Plant = Callable[[Store], None]


def plant_promisor(store: Store) -> None:
    store.append_settings(store.promisor)


def plant_include(store: Store) -> None:
    write(store.elsewhere, {"settings": store.promisor})
    store.append_settings(f"[include]\n\tpath = {store.elsewhere}/settings\n")


def plant_worktree_settings(store: Store) -> None:
    store.append_settings("[extensions]\n\tworktreeConfig = true\n")
    write(store.repository, {"config.worktree": store.promisor})


def plant_commondir(store: Store) -> None:
    """Configuration, references and hooks are then those of another folder."""
    write(
        store.elsewhere, {"config": store.promisor, "refs/heads/": b"", "objects/": b"", "HEAD": "ref: refs/heads/main"}
    )
    write(store.repository, {"commondir": f"{store.elsewhere}\n"})


def plant_filter_by_info(store: Store) -> None:
    store.append_settings(store.filter)
    write(store.repository, {"info/attributes": "* filter=planted diff=planted\n"})
    store.age_index()


def plant_filter_by_tree(store: Store) -> None:
    """The folder has the same attributes for a git that does not know this setting."""
    store.append_settings(f"[attr]\n\ttree = {store.first}\n{store.filter}")
    store.age_index()


def plant_monitor(store: Store) -> None:
    store.append_settings(f'[core]\n\tfsmonitor = "{store.command};"\n')


def plant_hooks_path(store: Store) -> None:
    write(store.elsewhere, {"hooks/reference-transaction": f"#!/bin/sh\n{store.command}\n"})
    (store.elsewhere / "hooks/reference-transaction").chmod(0o755)
    store.append_settings(f"[core]\n\thooksPath = {store.elsewhere}/hooks\n")


def plant_hook(store: Store) -> None:
    write(store.repository, {"hooks/reference-transaction": f"#!/bin/sh\n{store.command}\n"})
    (store.repository / "hooks/reference-transaction").chmod(0o755)


def plant_alternates(store: Store) -> None:
    subprocess.run(["git", "init", "-q", "--object-format=sha256", str(store.elsewhere)], check=True)
    write(store.repository, {"objects/info/alternates": f"{store.elsewhere}/.git/objects\n"})
    store.append_settings(f'[core]\n\talternateRefsCommand = "{store.command};"\n')


def plant_grafts(store: Store) -> None:
    write(store.repository, {"info/grafts": f"{store.first}\n"})


def plant_shallow(store: Store) -> None:
    write(store.repository, {"shallow": f"{store.first}\n"})


PLANTS: Sequence[Plant] = (
    plant_promisor,
    plant_include,
    plant_worktree_settings,
    plant_commondir,
    plant_filter_by_info,
    plant_filter_by_tree,
    plant_monitor,
    plant_hooks_path,
    plant_hook,
    plant_alternates,
    plant_grafts,
    plant_shallow,
)
PROGRAM_PLANTS = PLANTS[:10]
each_plant = pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
each_program_plant = pytest.mark.parametrize("plant", PROGRAM_PLANTS, ids=lambda plant: plant.__name__)


@pytest.fixture
def store(quick_path: Path) -> Store:
    return Store(quick_path)


@each_plant
def test_a_store_in_use_that_somebody_writes_to_is_refused_before_git_is_started(store: Store, plant: Plant) -> None:
    plant(store)
    with pytest.raises(Damaged, match="not as Weft made it"):
        store.files.snapshot(store.folder)
    with pytest.raises(Damaged, match="not as Weft made it"):
        store.files.prune(list)
    assert not store.canary.exists()


@each_program_plant
def test_what_is_planted_after_the_store_was_looked_at_runs_nothing(
    store: Store, plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted anew before each start of git, and away when the store is looked at."""
    saved = store.repository / "config"
    ours = saved.read_bytes()
    start = Git.start

    def start_planted(git: Git, *words: str, **options: Any) -> PipedProcess:
        saved.write_bytes(ours)
        plant(store)
        return start(git, *words, **options)

    monkeypatch.setattr(Git, "start", start_planted)
    monkeypatch.setattr(FileStore, "_ensure_ours", lambda self: None)
    store.use()
    assert not store.canary.exists()


def test_an_index_that_somebody_wrote_leads_git_into_no_submodule(store: Store) -> None:
    """Of a submodule git asks the submodule's own folder, with all that is configured there."""
    module = store.folder / "module"
    subprocess.run(["git", "init", "-q", "--object-format=sha256", str(module)], check=True)
    write(module, {"tracked": "t", ".gitattributes": "* filter=planted\n"})
    git = ["git", "-C", str(module), "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    store.files.snapshot(store.folder)
    with open(module / ".git/config", "a") as file:
        file.write(store.filter)
    os.utime(module / "tracked", (1, 1))
    for index in (store.repository.parent / "folders").glob("*/index-*"):
        environment = {**os.environ, "GIT_DIR": str(store.repository), "GIT_INDEX_FILE": str(index)}
        words = ["git", "update-index", "--add", "--cacheinfo", f"160000,{commit},module"]
        subprocess.run(words, env=environment, check=True)
    store.files.snapshot(store.folder)
    assert not store.canary.exists()


@pytest.mark.parametrize("part", ["objects", "refs", "objects/pack", "config", "packed-refs"])
def test_a_part_of_the_store_that_became_a_link_is_refused(store: Store, part: str) -> None:
    place = store.repository / part
    store.elsewhere.mkdir()
    if place.exists():
        place.rename(store.elsewhere / "part")
    place.symlink_to(store.elsewhere / "part")
    with pytest.raises(Damaged, match=part):
        store.files.snapshot(store.folder)
