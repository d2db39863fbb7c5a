"""An agent that wants its program run by the person's git, outside of the sandbox, the next time they ask for a status.

Each script tries to have a program named where git looks for it. The person then does with git what people do, and what
the program would have made is looked for.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec import structs

from tests.attacks.git_person import NESTED, Person, tried
from tests.runtime.sandbox.repositories import agent_does, agent_runs, make_repository, person_git
from tests.sizes import share
from weft.kernel.errors import StoreError, Unsupported
from weft.runtime.sandbox import bubblewrap
from weft.runtime.sandbox.git_view import SAME_FOLDER, GitGuard
from weft.runtime.sandbox.processes import STARTS, Ending
from weft.runtime.sandbox.profiles import Mount, mount_options


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


SCRIPTS = {
    "the configuration by git": """
        git config core.fsmonitor "$PROGRAM"
    """,
    "the configuration by hand": """
        printf "$SETTINGS" > .git/config
    """,
    "another file in its place": """
        printf "$SETTINGS" > x
        cp x y
        mv -f x .git/config
        rm -f .git/config
        cp y .git/config
    """,
    "the folder renamed": """
        mv .git old
        cp -r old .git
        printf "$SETTINGS" > .git/config
    """,
    "the folder exchanged": """
        cp -r .git new
        printf "$SETTINGS" > new/config
        mv -T --exchange new .git
        rm -rf .git
        mv -T new .git
    """,
    "a mount": r"""
        mkdir m
        mount --bind m .git
        unshare -rm sh -c "umount .git/config && printf \"$SETTINGS\" > .git/config"
    """,
    "a link to the configuration": """
        ln .git/config x
        printf "$SETTINGS" > x
        ln -sf /proc/self/root/$PWD/.git/config y
        printf "$SETTINGS" > y
    """,
    "a hook": """
        printf "$HOOK" > .git/hooks/post-index-change
        chmod +x .git/hooks/post-index-change
    """,
    "other hooks": """
        mv .git/hooks .git/o
        mkdir .git/hooks
        printf "$HOOK" > .git/hooks/pre-commit
        chmod +x .git/hooks/pre-commit
    """,
    "a folder of others": """
        mkdir evil
        cp -r .git/. evil
        printf "$SETTINGS" > evil/config
        echo ../evil > .git/commondir
    """,
    "a folder of others, exchanged": """
        mkdir evil
        cp -r .git/. evil
        printf "$SETTINGS" > evil/config
        echo ../evil > x
        rm -f .git/commondir
        mv -f x .git/commondir
    """,
    "settings of one tree": """
        git config extensions.worktreeConfig true
        printf "$SETTINGS" > .git/config.worktree
    """,
    "attributes": """
        echo "* filter=x" > .git/info/attributes
        git config filter.x.clean "$PROGRAM"
        git config filter.x.smudge "$PROGRAM"
    """,
    "an include": """
        git config include.path ../x
        printf "$SETTINGS" > x
    """,
    "settings of the home folder": """
        printf "$SETTINGS" > .gitconfig
        mkdir -p .config/git
        cp .gitconfig .config/git/config
    """,
    "a nested repository": """
        git init -q n
        printf "$SETTINGS" > n/.git/config
        git -C n commit -q --allow-empty -m n
        git add n
    """,
    "a nested repository in fetched files": """
        mkdir node_modules
        git init -q node_modules/n
        printf "$SETTINGS" > node_modules/n/.git/config
        git -C node_modules/n commit -q --allow-empty -m n
        git add -f node_modules/n
    """,
    "a nested hook": """
        git init -q n
        printf "$HOOK" > n/.git/hooks/post-index-change
        chmod +x n/.git/hooks/*
        git -C n commit -q --allow-empty -m n
        git add n
    """,
    "nested hooks behind a link": """
        git init -q n
        mkdir h
        printf "$HOOK" > h/post-index-change
        chmod +x h/*
        rm -rf n/.git/hooks
        ln -s ../../h n/.git/hooks
        git -C n commit -q --allow-empty -m n
        git add n
    """,
    "a nested commondir": NESTED
    + """
        cp -r n/.git c
        printf "$SETTINGS" > c/config
        echo ../../c > n/.git/commondir
    """,
    "a nested file that leads on": NESTED
    + """
        mv n/.git plain
        echo "gitdir: ../plain" > n/.git
        printf "$SETTINGS" > plain/config
    """,
    "a nested file with a blank at its end": NESTED
    + """
        mv n/.git "plain "
        echo "gitdir: ../plain " > n/.git
        printf "$SETTINGS" > "plain /config"
    """,
    "a nested link": NESTED
    + """
        mv n/.git plain
        ln -s ../plain n/.git
        printf "$SETTINGS" > plain/config
    """,
    "a nested configuration that is odd": NESTED
    + """
        printf '[CoRe]FSMonitor="%s"' "$PROGRAM" >> n/.git/config
    """,
    "a nested configuration behind a link": NESTED
    + """
        printf "$SETTINGS" > s
        ln -sf ../../s n/.git/config
    """,
    "a submodule in the folder of modules": """
        mkdir -p .git/modules
        git init -q n
        git -C n commit -q --allow-empty -m n
        git add n
        mv n/.git .git/modules/n
        echo "gitdir: ../.git/modules/n" > n/.git
        printf "$SETTINGS" > .git/modules/n/config
    """,
    "a second tree of one's own": """
        git worktree add -q n
        mkdir evil
        cp -r .git/. evil
        printf "$SETTINGS" > evil/config
        echo "$PWD/evil" > .git/worktrees/n/commondir
    """,
    "a second tree in the wrong place": """
        git init -q --bare plain
        git -C plain config core.bare false
        git -C plain config core.fsmonitor "$PROGRAM"
        mkdir -p n/.git plain/refs/heads
        echo ref: refs/heads/main > n/.git/HEAD
        echo ../../plain > n/.git/commondir
        echo x > n/.git/gitdir
        git rev-parse HEAD > plain/refs/heads/main
        git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),n
    """,
    "a hook behind settings that are a folder": NESTED
    + """
        mkdir n/.git/config.worktree
        printf "$HOOK" > n/.git/hooks/post-index-change
        chmod +x n/.git/hooks/post-index-change
    """,
    "a hook behind one that leads nowhere": """
        git init -q n
        ln -s /nonexistent n/.git/hooks/aaa
        printf "$HOOK" > n/.git/hooks/post-index-change
        chmod +x n/.git/hooks/post-index-change
        git -C n commit -q --allow-empty -m n
        git add n
    """,
}


@pytest.mark.parametrize("what", share(list(SCRIPTS), test=10))
def test_nothing_that_an_agent_writes_for_git_is_run_by_the_persons_git(person: Person, what: str) -> None:
    tried(person, SCRIPTS[what])
    person.ensure_unharmed(person.repository, *(place.parent for place in person.repository.rglob("*/.git")))


SECOND_COMMANDS = {
    "its configuration": (NESTED, 'printf "$SETTINGS" > n/.git/config; git -C n config core.fsmonitor "$PROGRAM"'),
    "a folder elsewhere": (
        NESTED + 'mv n/.git plain; echo "gitdir: ../plain" > n/.git',
        'printf "$SETTINGS" > plain/config; mv plain old; cp -r old plain; printf "$SETTINGS" > plain/config',
    ),
    "a folder behind a link": (
        NESTED + "mv n/.git plain; ln -s ../plain n/.git",
        'printf "$SETTINGS" > plain/config; printf "$HOOK" > plain/hooks/post-index-change; chmod +x plain/hooks/*',
    ),
    "the folder that trees share": (
        'git worktree add -q n; mkdir evil; cp -r .git/. evil; echo "$PWD/evil" > .git/worktrees/n/commondir',
        'printf "$SETTINGS" > evil/config; printf "$SETTINGS" > n/.git/config',
    ),
    "the folder renamed": (
        NESTED,
        'mv n m; cp -r m n; printf "$SETTINGS" > n/.git/config; printf "$SETTINGS" > m/.git/config',
    ),
}


@pytest.mark.parametrize("what", share(list(SECOND_COMMANDS), test=2))
def test_a_repository_of_the_agent_is_held_like_others_in_the_next_command(person: Person, what: str) -> None:
    for script in SECOND_COMMANDS[what]:
        tried(person, script)
    person.ensure_unharmed(person.repository, *(place.parent for place in person.repository.rglob("*/.git")))


def test_the_attacks_would_run_their_program_if_nothing_held_them(person: Person) -> None:
    """The same words by a person's own hand."""
    (person.repository / ".git/config").write_text(person.settings.replace("\\n", "\n").replace("\\t", "\t"))
    person.works()
    assert person.canary.exists()


def test_a_gitconfig_that_the_repository_tracks_is_obeyed_neither_inside_nor_outside(person: Person) -> None:
    text = f'[core]\n\tfsmonitor = "touch {person.repository}/ran-inside; false"\n\thooksPath = hooks\n'
    (person.repository / ".gitconfig").write_text(text)
    agent_does(person.repository, "export HOME=/tmp; git status; git add -A; git commit -qm more")
    assert not (person.repository / "ran-inside").exists()
    person.ensure_unharmed()


def test_a_program_that_the_repositorys_own_configuration_names_is_not_run_inside(person: Person) -> None:
    person_git(person.repository, "config", "core.fsmonitor", f"touch {person.repository}/ran-inside; false")
    agent_does(person.repository, "git status")
    assert not (person.repository / "ran-inside").exists()


def test_a_submodules_configuration_and_hooks_cannot_be_written(person: Person) -> None:
    library = make_repository(person.top / "library", files={"file": "library\n"})
    person_git(person.repository, "submodule", "--quiet", "add", str(library), "deep/module")
    person_git(person.repository, "commit", "-qm", "with a module")
    module = person.repository / ".git/modules/deep/module"
    config = (module / "config").read_bytes()
    for script in (
        'cd deep/module; git config core.fsmonitor "$PROGRAM"; printf "$SETTINGS" > $(git rev-parse --git-dir)/config',
        'cd .git/modules; mv deep old; cp -r old deep; printf "$SETTINGS" > deep/module/config',
        'cd .git/modules/deep/module; printf "$HOOK" > hooks/post-index-change; chmod +x hooks/post-index-change',
        'mkdir evil; printf "$SETTINGS" > evil/config; echo "$PWD/evil" > .git/modules/deep/module/commondir',
        'rm deep/module/.git; git init -q deep/module; printf "$SETTINGS" > deep/module/.git/config',
    ):
        tried(person, script)
        person.ensure_unharmed(person.repository, person.repository / "deep/module")
    assert config in (
        (place / "config").read_bytes() for place in (module, person.repository / ".git/modules/old/module")
    )


def test_the_common_folder_of_a_second_tree_takes_no_hooks_and_no_settings(person: Person) -> None:
    place = person.top / "tree"
    person_git(person.repository, "worktree", "add", "-q", "-b", "second", str(place))
    common = shlex.quote(str(person.repository / ".git"))
    evil = 'mkdir evil; printf "$SETTINGS" > evil/config; echo "$PWD/evil" >'
    for script in (
        f'printf "$HOOK" > {common}/hooks/post-index-change; chmod +x {common}/hooks/post-index-change',
        f'printf "$SETTINGS" > {common}/config; git config core.fsmonitor "$PROGRAM"',
        f"{evil} {common}/commondir",
        f"{evil} {common}/worktrees/tree/commondir",
        'rm .git; git init -q .; printf "$SETTINGS" > .git/config',
        f'rm -rf {common}/worktrees/tree; echo "ref: refs/heads/evil" > {common}/HEAD; rm {common}/index',
    ):
        tried(person, script, place)
        person.ensure_unharmed(place, person.repository)
    assert person_git(person.repository, "symbolic-ref", "HEAD") == "refs/heads/mine"


@pytest.mark.parametrize("lead", ["{other}/.git", "{other}/.git/worktrees/tree", "{other}/.git/modules/x"])
def test_a_file_that_leads_to_another_persons_repository_shows_nothing_of_it(person: Person, lead: str) -> None:
    other = make_repository(person.top / "other", files={"secret": "the secret\n"})
    person_git(other, "worktree", "add", "-q", str(person.top / "tree"))
    workspace = person.top / "workspace"
    workspace.mkdir()
    (workspace / ".git").write_text(f"gitdir: {lead.format(other=other)}\n")
    outcome = agent_runs(workspace, f"git log -p; ls {other}/.git; cat {other}/.git/HEAD")
    assert outcome.stdout == b""


def test_a_repository_whose_hooks_are_a_link_cannot_be_written_at_all(person: Person) -> None:
    hooks = person.repository / ".git/hooks"
    for sample in hooks.iterdir():
        sample.unlink()
    hooks.rmdir()
    (person.repository / "shared").mkdir()
    hooks.symlink_to("../shared")
    tried(
        person,
        'rm .git/hooks; mkdir .git/hooks; printf "$HOOK" > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit',
    )
    assert hooks.is_symlink()


def test_a_settings_file_that_the_person_includes_from_the_work_tree_cannot_be_changed(person: Person) -> None:
    (person.repository / "conf/git").mkdir(parents=True)
    (person.repository / "conf/git/shared").write_text("[core]\n\tquotePath = true\n")
    person_git(person.repository, "config", "include.path", "../conf/git/shared")
    tried(
        person,
        'printf "$SETTINGS" > conf/git/shared; mv conf old; mkdir -p conf/git; printf "$SETTINGS" > conf/git/shared',
    )
    person.ensure_unharmed()


def test_while_a_command_runs_nobody_can_lead_git_to_another_folder(person: Person) -> None:
    """Paused at the moment at which it would be planted: the person's git runs while the command does."""
    guard = GitGuard(person.repository)
    try:
        commondir = person.repository / ".git/commondir"
        assert commondir.read_bytes() == SAME_FOLDER
        tried(person, 'mkdir evil; printf "$SETTINGS" > evil/config; echo ../evil > .git/commondir; rm .git/commondir')
        assert commondir.read_bytes() == SAME_FOLDER
        person.ensure_unharmed()
    finally:
        guard.close()


def test_a_commondir_that_somebody_planted_before_makes_the_repository_read_only(person: Person) -> None:
    evil = person.top / "evil"
    evil.mkdir()
    (person.repository / ".git/commondir").write_text(f"{evil}\n")
    outcome = agent_runs(person.repository, "echo x > .git/new")
    assert b"Read-only" in outcome.stderr
    assert (person.repository / ".git/commondir").read_text() == f"{evil}\n"


def test_a_configuration_that_the_person_changes_while_a_command_runs_ends_the_command(person: Person) -> None:
    """The kernel takes a mount away where the file beneath it is replaced. The attacker waits for just that, and is as
    fast as it can be: the person's own git pauses until it has written."""
    started = person.repository / "started"

    def change() -> None:
        while not started.exists():
            time.sleep(0.01)
        person_git(person.repository, "remote", "add", "origin", "https://example.org/a.git")

    thread = threading.Thread(target=change)
    thread.start()
    script = """touch started
        until printf "$SETTINGS" >> .git/config; do :; done 2>/dev/null
        sleep 60
    """
    outcome = tried(person, script)
    thread.join()
    assert outcome.ending is Ending.UNCOVERED
    assert person_git(person.repository, "remote", "get-url", "origin") == "https://example.org/a.git"
    person.ensure_unharmed()
    assert "fsmonitor" not in (person.repository / ".git/config").read_text()


def test_a_branch_whose_log_is_written_by_hand_adds_nothing_but_a_plain_upstream(person: Person) -> None:
    person_git(person.repository, "remote", "add", "origin", "https://example.org/a.git")
    before = (person.repository / ".git/config").read_text()
    line = "0000000000000000000000000000000000000000 1111111111111111111111111111111111111111 a <b> 0 +0000"
    starts = ("ext::sh/x", "evil/main", 'origin/a"b\\n[core]', "origin/../x", "origin/-x y", "refs/heads/main")
    script = []
    for number, start in enumerate(starts):
        log = f"printf '{line}\\tbranch: Created from {start}\\n' > .git/logs/refs/heads/b{number}"
        script += [f"git branch b{number}", log]
    assert agent_runs(person.repository, "\n".join(script)).git.upstreams == ()
    assert (person.repository / ".git/config").read_text() == before


@pytest.mark.parametrize(
    "script",
    share(
        [
            'printf "$SETTINGS" > $(git rev-parse --git-common-dir)/config; git config core.fsmonitor "$PROGRAM"',
            'cd $(git rev-parse --git-common-dir); printf "$HOOK" > hooks/pre-commit; chmod +x hooks/pre-commit',
            'cd $(git rev-parse --git-common-dir); mkdir evil; echo "$PWD/evil" > commondir; rm -f HEAD index',
            'rm -f ../.git; mkdir -p ../.git; git init -q .; printf "$SETTINGS" | tee .git/config ../.git/config',
            """
        printf "$SETTINGS" > $(git rev-parse --git-dir)/config
        echo "$PWD" > $(git rev-parse --git-dir)/commondir
        printf 'ref: refs/heads/x\nevil' > $(git rev-parse --git-dir)/HEAD
        """,
        ],
        test=2,
    ),
)
def test_a_repository_above_the_workspace_takes_no_program_and_no_odd_head(person: Person, script: str) -> None:
    config = (person.repository / ".git/config").read_bytes()
    tried(person, script, person.repository / "below")
    assert person_git(person.repository, "symbolic-ref", "HEAD") == "refs/heads/main"
    assert (person.repository / ".git/config").read_bytes() == config
    person.ensure_unharmed(person.repository, person.repository / "below")


def test_a_path_that_is_too_long_keeps_nothing_from_being_looked_at(person: Person) -> None:
    name = "a" * 200
    deep = (
        f"for level in $(seq 25); do mkdir {name} && cd -P ./{name}; done 2> /dev/null; mkdir .git; touch .git/config"
    )
    tried(person, f'({deep})\n{NESTED}printf "$SETTINGS" > n/.git/config')
    person.ensure_unharmed(person.repository, person.repository / "n")


def test_a_persons_git_writes_through_no_link_that_a_command_made(person: Person) -> None:
    outside = person.top / "outside"
    outside.write_text("before")
    for name in ("COMMIT_EDITMSG", "FETCH_HEAD", "logs/HEAD", "refs/heads/x"):
        tried(person, f"rm -f .git/{name}; ln -s {outside} .git/{name}")
        assert not (person.repository / ".git" / name).is_symlink()
    person_git(person.repository, "commit", "-q", "--allow-empty", "-m", "x")
    assert outside.read_text() == "before"


def test_settings_of_a_second_tree_are_no_agents(person: Person) -> None:
    person_git(person.repository, "worktree", "add", "-q", "n")
    person_git(person.repository, "config", "extensions.worktreeConfig", "true")
    tried(person, 'printf "$SETTINGS" > .git/worktrees/n/config.worktree')
    person.ensure_unharmed(person.repository, person.repository / "n")


@pytest.mark.parametrize("part", ["n/.git", "project"])
def test_what_bubblewrap_finds_elsewhere_than_was_looked_at_is_not_shown(
    person: Person, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """It is told paths. Another command in the workspace leads one to a home folder while it is looked up, and back."""
    home = person.top / "home-of-a-person"
    home.mkdir()
    (home / "key").write_text("canary")
    person_git(person.top, "init", "-q", str(person.repository / "n"))
    (person.repository / "project/.weft").mkdir(parents=True)
    for name in ("config", "commondir", "hooks", "info", ".weft"):  # else the mounts beneath it could not be made
        (home / name).mkdir() if name in ("hooks", "info", ".weft") else (home / name).write_text("")
    place = str(person.repository / part)
    reached: list[Mount] = []

    def led_elsewhere(mounts: Iterable[Mount], file_descriptor: Callable[[bytes], int]) -> list[str]:
        shown = [structs.replace(mount, source=str(home)) if mount.place == place else mount for mount in mounts]
        reached.extend(mount for mount in shown if mount.source == str(home))
        return mount_options(shown, file_descriptor)

    monkeypatch.setattr(bubblewrap, "mount_options", led_elsewhere)
    with pytest.raises((StoreError, Unsupported)):
        agent_runs(person.repository, f"cat {part}/key; echo x > {part}/new")
    assert len(reached) == STARTS
    assert not (home / "new").exists()
