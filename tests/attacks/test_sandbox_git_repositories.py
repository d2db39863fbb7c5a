"""An agent that puts what git obeys where it is not looked for: folders of any name, files that lead to them, settings
that are not obeyed yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.attacks.git_person import NESTED, Person, tried
from tests.file_clock import let_tick
from tests.runtime.sandbox.repositories import agent_does, agent_runs, make_repository, person_git
from tests.sandbox import run_shell
from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox.git_leftovers import ChangedGit, disarm_repositories
from weft.runtime.sandbox.git_repositories import git_places, pointed_path
from weft.runtime.sandbox.git_view import GitGuard
from weft.runtime.sandbox.leftovers import ChangedFiles, StartTime

NOBODY = 65534


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


@pytest.fixture
def open_person() -> Iterator[Person]:
    """In a folder that somebody else can reach, too."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Person(Path(folder))


def led_to(name: str, pointer: str, *, folder: str = "sub") -> str:
    """A repository in a folder of some name, a file `.git` that leads there, and what makes a person's git look."""
    return f"""
        git init -q r
        git -C r commit -q --allow-empty -m r
        head=$(git -C r rev-parse HEAD)
        place=$(printf '{name}x'); place=${{place%x}}
        mv r/.git "$place"
        mkdir -p {folder}
        printf 'gitdir: {pointer}' > {folder}/.git
        git -C {folder} rev-parse HEAD
        git update-index --add --cacheinfo 160000,$head,{folder}
    """


IN_EACH = 'for place in pl*; do git config --file "$place/config" core.fsmonitor "$PROGRAM"; done'
TWO_COMMANDS = {
    "a plain folder": (led_to("plain", "../plain\\n"), IN_EACH),
    "in fetched files": (led_to("plain", "../../plain\\n", folder="node_modules/n"), IN_EACH),
    "a blank at its end": (led_to("plain ", "../plain \\n"), IN_EACH),
    "a zero byte at its end": (led_to("plain", "../plain\\0junk"), IN_EACH),
    "a line end in it": (led_to("pl\\nain", "../pl\\nain\\n"), IN_EACH),
    "very many line ends at its end": (
        led_to("plain", "../plain\\n") + "head -c 200000 /dev/zero | tr '\\0' '\\n' >> sub/.git",
        IN_EACH,
    ),
    "a hook": (
        led_to("plain", "../../plain\\n", folder="node_modules/n"),
        'printf "$HOOK" > plain/hooks/post-index-change; chmod +x plain/hooks/post-index-change',
    ),
    "the head made later": (
        "mkdir -p plain node_modules/n; git init -q --bare -b main plain; rm plain/HEAD; mv plain/refs plain/r\n"
        'printf "$SETTINGS" > plain/config; echo "gitdir: ../../plain" > node_modules/n/.git',
        "echo ref: refs/heads/main > plain/HEAD; mv plain/r plain/refs\n"
        "git rev-parse HEAD > plain/refs/heads/main; cp -r .git/objects plain\n"
        "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),node_modules/n",
    ),
    "settings that trees share": (
        "mkdir -p node_modules/n own common; git init -q --bare common/x; mv common/x/* common; rm common/HEAD\n"
        'echo "gitdir: ../../own" > node_modules/n/.git; echo ../common > own/commondir; cp .git/HEAD own/HEAD\n'
        "cp -r .git/objects .git/refs common\n"
        "git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),node_modules/n",
        'printf "$SETTINGS" > common/config',
    ),
    "a head in upper case": (
        "mkdir own sub; git init -q r; git -C r commit -q --allow-empty -m r; head=$(git -C r rev-parse HEAD)\n"
        "mv r/.git common; echo $head | tr a-f A-F > own/HEAD; echo ../common > own/commondir; echo x > own/gitdir\n"
        'git --git-dir=common config extensions.worktreeConfig true; echo "gitdir: ../own" > sub/.git\n'
        'printf "$SETTINGS\\tworktree = ../sub\\n" > own/config.worktree',
        "true",
    ),
    "a tree that the repository does not know": (
        "mkdir -p .git/worktrees/e sub; git rev-parse HEAD | tr a-f A-F > .git/worktrees/e/HEAD\n"
        "echo ../.. > .git/worktrees/e/commondir; echo $PWD/sub/.git > .git/worktrees/e/gitdir\n"
        'printf "$SETTINGS" > .git/worktrees/e/config.worktree; echo "gitdir: ../.git/worktrees/e" > sub/.git',
        "true",
    ),
    "the folder itself is git's": (
        "mkdir sub; cp -r .git/HEAD .git/objects .git/refs .git/index sub",
        'printf "$SETTINGS\\tworktree = .\\n" > sub/config',
    ),
}


@pytest.mark.parametrize("what", TWO_COMMANDS)
def test_a_folder_of_any_name_that_git_obeys_takes_no_program(person: Person, what: str) -> None:
    if what == "a tree that the repository does not know":  # else git does not read the settings of a tree
        person_git(person.repository, "config", "extensions.worktreeConfig", "true")
    for script in TWO_COMMANDS[what]:
        tried(person, script)
    places = [person.repository / name for name in (".", "sub", "node_modules/n")]
    person.ensure_unharmed(*(place for place in places if place.is_dir()))


def test_a_folder_of_any_name_would_run_the_program_if_nothing_held_it(person: Person) -> None:
    """The same by a person's own hand."""
    tried(person, TWO_COMMANDS["a plain folder"][0])
    person_git(person.repository / "sub", "config", "core.fsmonitor", person.program)
    person.works()
    assert person.canary.exists()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"gitdir: a", "a"), (b"gitdir: a \n", "a "), (b"gitdir: a\r\n\n", "a"), (b"gitdir: a\0b\n", "a"),
        (b"gitdir: a\nb\n", "a\nb"), (b"gitdir: ../x", "../x"), (b"gitdir:a", None), (b" gitdir: a", None),
        (b"gitdir: ", None), (b"GITDIR: a", None), (b"gitdir: a" + b"\n" * 1000000, "a"),
        (b"gitdir: a" + b"\n" * 1100000, None),
    ],
)  # fmt: skip
def test_a_file_leads_where_git_follows_it(tmp_path: Path, text: bytes, name: str | None) -> None:
    """Git is asked, too."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".git").write_bytes(text)
    place = None if name is None else os.path.join(folder, name)
    assert pointed_path(str(folder / ".git")) == place
    make_repository(tmp_path / "repository", files={"file": "one\n"})
    target = Path(place or folder / "a")
    (tmp_path / "repository/.git").rename(target)
    outcome = agent_runs(folder, "git rev-parse HEAD") if ".." not in (name or "") else None
    assert outcome is None or outcome.succeeded == (name is not None)


def test_a_repository_of_another_name_keeps_what_it_had(person: Person) -> None:
    """One that the person put into the workspace: a command pushes to it, and tries to add a program."""
    other = person.repository / "shared"
    person_git(person.repository, "init", "-q", "--bare", "shared")
    person_git(other, "config", "receive.denyDeletes", "true")
    person_git(other, "config", "core.pager", "mine")
    (other / "hooks/update").write_text("#!/bin/sh\nexit 0\n")
    (other / "hooks/update").chmod(0o755)
    outcome = tried(
        person,
        "git push -q ./shared main; git config --file shared/config core.fsmonitor x\n"
        'printf "$HOOK" > shared/hooks/post-update; chmod +x shared/hooks/post-update',
    )
    assert outcome.succeeded, outcome.stderr
    assert person_git(other, "rev-parse", "main") == person_git(person.repository, "rev-parse", "main")
    assert person_git(other, "config", "receive.denyDeletes") == "true"
    assert person_git(other, "config", "core.pager") == "mine"
    assert (other / "hooks/update").exists()
    assert not (other / "hooks/post-update").exists()
    assert outcome.git.taken_away == ("shared/config: core.fsmonitor", "shared/hooks/post-update")


def test_folders_that_only_look_like_gits_are_left_alone(tmp_path: Path) -> None:
    """A program's own, in which there are `objects`, `refs` and `config`, as any may call its parts."""
    for name in ("objects", "refs", "hooks", "deep/config", "deep/objects", "deep/refs"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "config").write_text("level: 1\n")
    (tmp_path / "deep/HEAD").write_text("the head of a page\n")
    script = "echo 'level: 2' > config; touch hooks/useThing.ts deep/config/x; echo a | tee -a deep/HEAD > deep/hooks"
    assert not agent_runs(tmp_path, script).git.sentences(b"")
    assert (tmp_path / "config").read_text() == "level: 2\n"
    assert (tmp_path / "hooks/useThing.ts").exists()
    assert (tmp_path / "deep/config/x").exists()
    assert (tmp_path / "deep/hooks").read_text() == "a\n"


def test_no_file_and_no_link_leads_git_to_where_nobody_looks(person: Person, tmp_path: Path) -> None:
    """The caches of commands lie on disk and are not looked through. Where, a command reads off its mounts."""
    caches = tmp_path / "caches"
    script = """
        place=$(awk '$5 == "/home/agent/.cache" { print $4 }' /proc/self/mountinfo)
        git init -q n; git -C n commit -q --allow-empty -m n; git add n
        mv n/.git ~/.cache/evil
        printf "$SETTINGS" > ~/.cache/evil/config
        test -n "$place"
    """
    leads = (
        'echo "gitdir: $place/evil" > n/.git',
        'ln -s "$place/evil" n/.git',
        'ln -s "$place" link; echo "gitdir: ../link/evil" > n/.git',
        'ln -s "${place%/*/*}" up; echo "gitdir: ../up/${place#"${place%/*/*}"}/evil" > n/.git',
        'echo "gitdir: /proc/self/cwd/../x" > n/.git',
    )
    for lead in leads:
        outcome = tried(person, script + lead, caches=caches)
        assert outcome.succeeded
        assert outcome.git.taken_away in (("n/.git",), ("link",))
        person.ensure_unharmed(person.repository, person.repository / "n")
        agent_does(person.repository, "rm -rf n link up ~/.cache/evil", caches=caches)


def test_an_old_file_of_remotes_names_no_address(person: Person) -> None:
    """`git push origin` would send to a repository of the agent's, and run its hooks, where `origin` is no remote."""
    for script in (
        "git init -q --bare lib; mkdir -p .git/remotes; printf 'URL: ./lib\\n' > .git/remotes/origin",
        "mkdir -p .git/branches; echo ./lib > .git/branches/origin",
        "rm -rf .git/remotes; mkdir .git/remotes; printf 'URL: ./lib\\n' > .git/remotes/origin",
        'printf "$HOOK" > lib/hooks/pre-receive; chmod +x lib/hooks/pre-receive',
        NESTED + "mkdir -p n/.git/remotes; printf 'URL: ../lib\\n' > n/.git/remotes/origin",
    ):
        tried(person, script)
    assert not (person.repository / ".git/remotes/origin").exists()
    assert not (person.repository / "n/.git/remotes/origin").exists()
    for folder in (person.repository, person.repository / "n"):
        assert "origin" in run_shell(f"cd {folder} && git fetch origin", folder).stderr.decode()
    person.ensure_unharmed()


def test_settings_of_a_tree_are_no_agents_where_they_are_not_obeyed_yet(person: Person) -> None:
    outcome = tried(person, 'printf "$SETTINGS" > .git/config.worktree')
    assert outcome.git.taken_away == (".git/config.worktree: core.fsmonitor",)
    person_git(person.repository, "sparse-checkout", "set", "below")
    person.ensure_unharmed()


def test_settings_of_a_tree_that_the_person_had_are_not_changed(person: Person) -> None:
    own = person.repository / ".git/config.worktree"
    own.write_text("[core]\n\tpager = mine\n")
    tried(person, 'printf "$SETTINGS" > .git/config.worktree; rm -f .git/config.worktree')
    assert own.read_text() == "[core]\n\tpager = mine\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else")
@pytest.mark.parametrize("closed", [".git", ".git/hooks", "."])
def test_a_repository_that_is_closed_for_writing_is_cleaned(open_person: Person, closed: str) -> None:
    """The person is no root, for whom nothing is closed. What the agent did is done by hand."""
    person = open_person
    folder = person.repository / "n"
    folder.mkdir()
    os.chown(person.repository, NOBODY, NOBODY)
    guard = GitGuard(person.repository, is_read_only=True)
    started = StartTime.now(str(person.repository))
    make_repository(folder)
    (folder / ".git/config").write_text(person.settings.replace("\\n", "\n").replace("\\t", "\t"))
    (folder / ".git/hooks/pre-commit").write_text(person.hook.replace("\\n", "\n"))
    (folder / ".git/hooks/pre-commit").chmod(0o755)
    for place in (folder, *folder.rglob("*")):
        os.chown(place, NOBODY, NOBODY)
    (folder / closed).chmod(0o555)
    os.seteuid(NOBODY)
    try:
        changed = ChangedFiles(str(person.repository), started).remove_privileges()
        disarm_repositories(
            str(person.repository), guard.view, ChangedGit(changed={str(person.repository): changed.repositories})
        )
    finally:
        os.seteuid(0)
        guard.close()
    assert "fsmonitor" not in (folder / ".git/config").read_text()
    assert not (folder / ".git/hooks/pre-commit").exists()


def test_what_the_person_made_a_moment_before_a_command_stays(person: Person) -> None:
    """Not even a second: the file system says when the command began."""
    folder = make_repository(person.repository / "node_modules/n", files={"file": "one\n"})
    person_git(folder, "config", "core.pager", "mine")
    let_tick(person.repository)
    agent_does(person.repository, "echo x > new")
    assert person_git(folder, "config", "core.pager") == "mine"


def test_a_clock_that_is_set_back_hides_nothing(tmp_path: Path) -> None:
    """As if it had been an hour later when the command began, by what the clock said then."""
    started = StartTime.now(str(tmp_path))
    (tmp_path / "config").write_text("")
    later = StartTime(
        seconds=started.seconds + 3600,
        monotonic=started.monotonic,
        device=started.device,
        own_seconds=started.own_seconds + 3600,
    )
    assert ChangedFiles(str(tmp_path), later).remove_privileges().repositories == {""}


def test_links_in_a_repository_of_the_agents_lead_nowhere(person: Person) -> None:
    outside = person.top / "outside"
    outside.write_text("before")
    tried(person, f"git init -q n; ln -s {outside} n/.git/COMMIT_EDITMSG; ln -s {outside} n/.git/FETCH_HEAD")
    person_git(person.repository / "n", "commit", "-q", "--allow-empty", "-m", "x")
    assert outside.read_text() == "before"


@pytest.mark.slow("makes more folders than were looked through once")
def test_a_hook_of_a_very_long_name_keeps_no_other_hook(person: Person) -> None:
    tried(
        person,
        f"git init -q n; cd n/.git/hooks; for hook in {'a' * 250} pre-commit; do\n"
        'printf "$HOOK" > $hook; chmod +x $hook; done',
    )
    person.ensure_unharmed(person.repository / "n")


def test_no_number_of_folders_pushes_a_repository_out_of_the_look(person: Person) -> None:
    place = make_repository(person.repository / "z/team/lib", files={"file": "one\n"})
    person_git(place, "remote", "add", "origin", "https://ada:secret-token@example.org/a.git")
    for script in ("seq 1 5100 | xargs mkdir", 'printf "$SETTINGS" >> z/team/lib/.git/config'):
        tried(person, script)
    assert "secret-token" not in agent_does(person.repository, "cat z/team/lib/.git/config")
    assert "secret-token" in (place / ".git/config").read_text()
    person.ensure_unharmed(person.repository, place)


def test_a_workspace_that_cannot_be_looked_through_is_refused(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    assert list(git_places(str(tmp_path), most=4)) == []
    with pytest.raises(InvalidInput, match="more than 3 folders"):
        list(git_places(str(tmp_path), most=3))
