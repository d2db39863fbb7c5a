"""In a folder that is trusted for work an agent's commands run unasked, as long as they stay in the sandbox and what
they change is given back by `weft undo`: a hostile model gets no further, and nobody else inherits the trust."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import weft as package
from tests.runtime.inference.asking import CANARY
from tests.runtime.sandbox.repositories import make_repository, person_git
from tests.runtime.scripted import Script, chat, chat_saying
from tests.sandbox import machine_sandbox
from tests.sizes import share
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import beside, serve_until_empty, stock
from weft.ledger.api import Approval, Ledger, Runs
from weft.surfaces.cli.user_files import trust_store

ON_DISK = True  # no sandbox takes a workspace in memory
LOOK_SECONDS = 0.2
NOT_OWNERS = "no rule of the policy allows it; the owner of the ledger did not begin this turn"
CONTAINED = "it stays inside the sandbox of a folder that is trusted for work"


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_sandbox()
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "local")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "work"


@pytest.fixture
def weft(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A person in a folder with an empty ledger, and a home of their own."""
    (tmp_path / "home").mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(folder)
    (tmp_path / "home" / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    person = Shell(folder, monkeypatch, capsys)
    assert person("init").code == 0
    return person


def calling(tool: str, **arguments: Any) -> Script:
    call = {"id": "call-1", "type": "function", "function": {"name": tool, "arguments": json.dumps(arguments)}}
    return chat_saying({"content": None, "tool_calls": [call]}, finish="tool_calls")


def running(command: str) -> Script:
    return calling("shell", cmd=command)


@contextmanager
def refusing(weft: Shell) -> Iterator[list[Approval]]:
    """Somebody who refuses whatever they are asked; what that was."""
    asked: list[Approval] = []
    is_over = threading.Event()

    def refuse(ledger: Ledger) -> None:
        seen = 0
        while not is_over.is_set():
            for approval in ledger.approvals.list():
                asked.append(approval)
                ledger.approvals.deny(approval.id)
            Runs(ledger).wait_for_news(seen, LOOK_SECONDS)
            seen = ledger.newest()

    with beside(weft, refuse):
        try:
            yield asked
        finally:
            is_over.set()


def begin(weft: Shell, *scripts: Script, session: str = "talk", sender: tuple[str, ...] = ()) -> list[Approval]:
    """A turn of these calls; what was asked about them. Everything that is asked is refused."""
    with serving(*scripts, chat()) as server, refusing(weft) as asked:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        sent = weft(*sender, "send", "--session", session, "Begin")
        assert sent.code == 0, sent.err
    return asked


@pytest.fixture
def project(weft: Shell, folder: Path) -> Path:
    """A folder with a ledger, an agent with tools, and a repository, that is trusted for work."""
    stock(weft, "http://127.0.0.1:9/v1", "talk")
    assert weft("session", "configure", "talk", "--set", "toolset=worker").code == 0
    assert weft("trust", ".", "--work").code == 0
    make_repository(folder)
    (folder / ".gitignore").write_text("*.sqlite\nfetched/\n.weft/\n")
    for number in range(4):
        (folder / "a.txt").write_text(f"{number}\n" * 50)
        person_git(folder, "add", ".gitignore", "a.txt")
        person_git(folder, "commit", "-qm", f"commit {number}")
    person_git(folder, "branch", "other", "HEAD~1")
    (folder / "rows.sqlite").write_text("rows")
    (folder / "a.txt").write_text("to be stashed\n")
    person_git(folder, "stash", "push", "-q", "a.txt")
    (folder / "staged.txt").write_text("staged\n")
    person_git(folder, "add", "staged.txt")
    return folder


def state_of(folder: Path) -> dict[str, Any]:
    """All that a person has there."""
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.glob("*.*") if path.is_file()}
    commands = {
        words: person_git(folder, *words.split())
        for words in (
            "status --porcelain",
            "log --all --format=%H%d",
            "stash list",
            "reflog --all",
            "show-ref",
            "diff --cached",
        )
    }
    assert person_git(folder, "fsck", "--full", "--no-dangling") == ""
    return {"files": files, **commands}


def every_file(folder: Path) -> dict[Path, tuple[int, bytes]]:
    """Their modes and bytes, git's among them."""
    paths = (path for path in folder.rglob("*") if ".weft" not in path.parts)
    return {path: (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths}


def decisions(weft: Shell) -> list[tuple[str, str, str | None]]:
    with weft_ledger(weft) as ledger:
        turn = ledger.session("talk").head
        assert turn is not None
        return [(one.by, one.decision, one.rationale) for one in ledger.approvals.decisions(turn)]


@contextmanager
def weft_ledger(weft: Shell) -> Iterator[Ledger]:
    with package.open(weft.folder / ".weft" / "ledger.db", read_only=True) as ledger:
        yield ledger


@pytest.mark.slow("the first that loads what turns with tools need")
def test_a_command_there_runs_unasked_and_the_decision_says_why(weft: Shell, project: Path) -> None:
    assert begin(weft, running("echo $((1 + 1)) > made.txt"), calling("write", path="b.txt", content="b")) == []
    assert (project / "made.txt").read_text() == "2\n"
    assert (project / "b.txt").read_text() == "b"
    assert decisions(weft) == [("policy", "allow", CONTAINED)] * 2


@pytest.mark.parametrize("how", ["chat", "agent run"])
def test_an_agent_that_the_owner_sets_to_work_is_not_held_up(weft: Shell, project: Path, how: str) -> None:
    with serving(running("echo x > made.txt"), chat()) as server, refusing(weft) as asked:
        weft("provider", "configure", "there", "--base-url", server.url)
        if how == "agent run":
            weft("agent", "create", "ada", "--model", "fast")
            assert weft("agent", "run", "ada", "make it", "--in", ".").code == 0
        else:
            assert weft("chat", "talk", stdin="make it\n").code == 0
    assert asked == []
    assert (project / "made.txt").exists()


def test_without_that_trust_it_is_asked_about(weft: Shell, project: Path) -> None:
    assert weft("trust", ".", "--work", "--revoke").code == 0
    asked = begin(weft, running("echo $((1 + 1)) > made.txt"), calling("write", path="b.txt", content="b"))
    assert [approval.tool for approval in asked] == ["shell", "write"]
    assert not (project / "made.txt").exists()


DESTROYING = {
    "git forgets": "git stash drop -q; git reset -q --hard HEAD~3 && git branch -D other && "
    "git reflog expire --expire=now --all && git gc -q --prune=now",
    "its files are removed": "rm -rf .git/objects .git/refs .git/logs .git/HEAD .git/index .git/packed-refs; rm -f *.*",
    "its objects are overwritten": "find .git/objects -type f -exec chmod u+w {} + ; "
    "find .git/objects -type f | while read -r file; do echo x > $file; done",
    "its objects lie elsewhere": "mv .git/objects there; ln -s /tmp .git/objects",
    "rules hide what is changed": "echo '*' > .gitignore; echo '*' > .git/info/exclude; "
    "echo bad > a.txt; rm staged.txt",
    "rules uncover what was ignored": ": > .gitignore; echo new > new.txt",
    "ignored files are changed": "echo none > rows.sqlite; rm -f *.db",
    "folders cannot be read": "rm -rf .git/refs/heads; chmod 000 .git/refs .git/objects/pack .git/objects; rm a.txt; "
    "chmod 000 .git .",
    "a reference is a link": "rm .git/refs/heads/other; ln -s ../../config .git/refs/heads/other; "
    "ln -sf /etc/passwd a.txt",
}


@pytest.mark.parametrize("how", share(list(DESTROYING), test=3))
def test_what_an_unasked_command_destroys_undo_gives_back(weft: Shell, project: Path, how: str) -> None:
    before, files = state_of(project), every_file(project)
    assert begin(weft, running(DESTROYING[how])) == []
    assert decisions(weft) == [("policy", "allow", CONTAINED)]
    assert every_file(project) != files, "the command did what it says"
    undone = weft("undo", "talk")
    assert undone.code == 0, undone.err
    assert state_of(project) == before
    assert "git and the ignored files that were kept are as they were, new ignored files stay" in undone.out


@pytest.mark.slow("keeps and restores a repository three times")
def test_what_undo_gave_back_redo_takes_again(weft: Shell, project: Path) -> None:
    assert begin(weft, running("git commit -qam work && git tag done && echo more > a.txt")) == []
    after = state_of(project)
    assert "done" in after["show-ref"]
    assert weft("undo", "talk").code == 0
    assert "done" not in person_git(project, "tag")
    assert weft("undo", "talk", "--redo").code == 0
    assert state_of(project) == after


def test_a_repository_that_cannot_be_kept_any_more_is_given_back_all_the_same(weft: Shell, project: Path) -> None:
    """An agent does not keep an undo off by leaving what no snapshot takes."""
    before = state_of(project)
    begin(weft, running("mv .git/objects there; ln -s /tmp .git/objects; mkfifo pipe; chmod 000 a.txt"))
    assert weft("undo", "talk").code == 0
    (project / "pipe").unlink(missing_ok=True)
    assert state_of(project) == before


@pytest.mark.slow("keeps a folder of 1,200 files twice, each time with a sandbox")
def test_ignored_files_that_are_too_large_to_keep_are_named(weft: Shell, project: Path) -> None:
    (project / "fetched").mkdir()
    for number in range(1200):
        (project / "fetched" / str(number)).write_text("x")
    with serving(running("true"), chat()) as server, refusing(weft):
        weft("provider", "configure", "there", "--base-url", server.url)
        sent = weft("send", "--session", "talk", "Begin")
    assert "`weft undo` does not give back what is too large to keep, hidden, or cannot be read: fetched/" in sent.err
    with serving(running("true"), chat()) as server, refusing(weft):
        weft("provider", "configure", "there", "--base-url", server.url)
        assert weft("send", "--session", "talk", "Begin", "--json").json["not_kept"] == ["fetched/"]


# --- what asks ------------------------------------------------------------------------------------------------------


def rationales(asked: list[Approval]) -> list[str]:
    return [approval.rationale or "" for approval in asked]


def test_a_command_with_a_network_asks(weft: Shell, project: Path) -> None:
    words = ("toolset", "create", "online", "--allow", "shell", "--sandbox", "network:example.org")
    assert weft(*words).code == 0
    assert weft("session", "configure", "talk", "--set", "toolset=online").code == 0
    (why,) = rationales(begin(weft, running("echo x > made.txt")))
    assert why == "no rule of the policy allows it; it leaves the sandbox"
    assert not (project / "made.txt").exists()


def test_a_page_asks(weft: Shell, project: Path) -> None:
    words = ("toolset", "create", "online", "--allow", "fetch_url", "--sandbox", "network:example.org")
    assert weft(*words).code == 0
    assert weft("session", "configure", "talk", "--set", "toolset=online").code == 0
    assert len(begin(weft, calling("fetch_url", url="https://example.org/"))) == 1


def test_nothing_outside_of_the_folder_is_written_by_what_runs_unasked(weft: Shell, project: Path) -> None:
    outside = project.parent / "outside"
    outside.mkdir()
    (project / "way").symlink_to(outside)
    script = f"echo x > ../made; echo x > {outside}/made; echo x > way/made; echo x > $HOME/made; echo x > .weft/made"
    assert begin(weft, running(script), calling("shell", cmd="echo x > made", cwd="..")) == []
    assert [path.name for path in project.parent.rglob("made")] == []


def test_files_of_secrets_are_not_changed_unasked(weft: Shell, project: Path) -> None:
    paths = (".env", "config/.envrc", "deploy.tfstate", "id_rsa", ".docker/config.json")
    asked = begin(weft, *(calling("write", path=path, content="x") for path in paths))
    assert [approval.subjects for approval in asked] == [(path,) for path in paths]
    assert [path for path in paths if (project / path).exists()] == []


@pytest.mark.parametrize("is_there", [True, False])
def test_what_gits_configuration_includes_is_not_changed_unasked(weft: Shell, project: Path, is_there: bool) -> None:
    """The person's next `git status` would run what it names, outside of the sandbox."""
    planted = "[core]\n\tfsmonitor = sh ./x.sh\n"
    person_git(project, "config", "include.path", "../team/git.inc")
    (project / "team").mkdir()
    (project / "by-another-name").symlink_to("team")
    if is_there:
        (project / "team" / "git.inc").write_text("[core]\n")
    for path in ("team/git.inc", "by-another-name/git.inc"):
        (why,) = rationales(begin(weft, calling("write", path=path, content=planted)))
        assert why == "no rule of the policy allows it; team/git.inc is a part of git's configuration"
    assert "fsmonitor" not in person_git(project, "config", "--list")


@pytest.mark.slow("runs three turns, each with a sandbox")
def test_what_the_persons_own_configuration_of_git_includes_is_not_changed_unasked(
    weft: Shell, project: Path, tmp_path: Path
) -> None:
    settings = tmp_path / "home" / ".gitconfig"
    settings.write_text(f"{settings.read_text()}[include]\n\tpath = {project}/team.inc\n")
    (why,) = rationales(begin(weft, calling("write", path="team.inc", content="[core]\n\tfsmonitor = sh ./x.sh\n")))
    assert why == "no rule of the policy allows it; team.inc is a part of git's configuration"
    assert not (project / "team.inc").exists()


def test_a_folder_that_the_session_names_or_a_link_leads_to_does_not_inherit_the_trust(
    weft: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = project.parent / "other"
    other.mkdir()
    (project / "linked").symlink_to(other)
    monkeypatch.setenv("WEFT_LEDGER", str(project / ".weft" / "ledger.db"))
    monkeypatch.chdir(project.parent)
    for place in (other, project / "linked"):
        assert weft("session", "configure", "talk", "--set", f"workspace={place}").code == 0
        (why,) = rationales(begin(weft, running("echo x > made.txt")))
        assert why == "no rule of the policy allows it"
    assert weft("session", "configure", "talk", "--set", f"workspace={project}").code == 0
    assert begin(weft, running("echo x > made.txt")) == []
    assert [path.parent for path in project.parent.rglob("made.txt")] == [project]


def test_what_is_revoked_while_a_turn_waits_asks_from_then_on(weft: Shell, project: Path) -> None:
    asked = list[str]()
    is_over = threading.Event()

    def revoke_and_refuse(ledger: Ledger) -> None:
        seen = 0
        while not is_over.is_set():
            for approval in ledger.approvals.list():
                asked.append(approval.tool)
                trust_store().revoke_work(str(project))
                ledger.approvals.deny(approval.id)
            Runs(ledger).wait_for_news(seen, LOOK_SECONDS)
            seen = ledger.newest()

    scripts = (running("echo x > one.txt"), calling("write", path=".env", content="x"), running("echo x > two.txt"))
    with serving(*scripts, chat()) as server, beside(weft, revoke_and_refuse):
        weft("provider", "configure", "there", "--base-url", server.url)
        try:
            assert weft("send", "--session", "talk", "Begin").code == 0
        finally:
            is_over.set()
    assert asked == ["write", "shell"]
    assert (project / "one.txt").exists()
    assert not (project / "two.txt").exists()


def test_another_persons_message_asks(weft: Shell, project: Path) -> None:
    assert (
        weft(
            "human", "create", "ann", "--permission", "configure", "--permission", "session:*", "--permission", "turn:*"
        ).code
        == 0
    )
    assert weft("session", "configure", "talk", "--set", f"workspace={project}").code == 0
    (why,) = rationales(begin(weft, running("echo x > made.txt"), sender=("--as", "ann")))
    assert why == NOT_OWNERS
    assert not (project / "made.txt").exists()


def test_another_persons_agent_asks(weft: Shell, project: Path) -> None:
    assert (
        weft(
            "human", "create", "ann", "--permission", "configure", "--permission", "session:*", "--permission", "turn:*"
        ).code
        == 0
    )
    assert weft("--as", "ann", "agent", "create", "anns", "--set", "visibility=public").code == 0
    words = ("session", "create", "theirs", "--model", "fast", "--owner", "anns")
    assert weft(*words).code == 0
    assert weft("session", "configure", "theirs", "--set", "toolset=worker").code == 0
    (why,) = rationales(begin(weft, running("echo x > made.txt"), session="theirs"))
    assert why == "no rule of the policy allows it; the agent 'anns' was made by somebody else"
    assert not (project / "made.txt").exists()


def test_a_trigger_asks_also_the_owners(weft: Shell, project: Path) -> None:
    assert weft("session", "configure", "talk", "--set", f"workspace={project}").code == 0
    words = ("trigger", "create", "daily", "--every", "24h", "--message", "go", "--session", "talk")
    assert weft(*words).code == 0
    with serving(running("echo x > made.txt"), chat()) as server, refusing(weft) as asked:
        weft("provider", "configure", "there", "--base-url", server.url)
        assert weft("trigger", "run", "daily").code == 0
        assert serve_until_empty(weft)[0] == 0
    assert rationales(asked) == [NOT_OWNERS]


def test_a_session_of_another_ledger_does_not_count_as_begun_here(weft: Shell, project: Path) -> None:
    source, clone = project / ".weft" / "ledger.db", project.parent / "clone.db"
    assert weft("clone", str(source), str(clone)).code == 0
    for path, is_here in ((source, True), (clone, False)):
        with package.open(path, read_only=True) as ledger:
            assert Runs(ledger).is_session_from_here(ledger.session("talk").id) is is_here


def test_where_nothing_is_kept_a_command_asks(weft: Shell, project: Path, tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".config" / "weft" / "resources.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text("[snapshots]\nturns = false\n")
    (why,) = rationales(begin(weft, running("echo x > made.txt")))
    assert why == "no rule of the policy allows it; nothing is kept that could be given back"


def test_where_the_repository_cannot_be_kept_a_command_asks_and_files_are_kept(weft: Shell, project: Path) -> None:
    (project / ".git" / "objects" / "pack").rename(project / "pack")
    (project / ".git" / "objects" / "pack").symlink_to(project / "pack")
    (why,) = rationales(begin(weft, running("echo x > made.txt")))
    assert why.startswith("no rule of the policy allows it; not all of the folder can be kept: ")


def test_a_ledger_with_a_policy_of_its_own_keeps_it(weft: Shell, project: Path) -> None:
    source = 'import json, sys\njson.load(sys.stdin)\nprint(json.dumps({"decision": "ask", "rationale": "ours"}))\n'
    with package.open(project / ".weft" / "ledger.db") as ledger:
        policy = ledger.policies.propose("ours", source)
        tests = package.PolicyTests(total=1, passed=1, failed=0)
        ledger.policies.activate(policy.id, digest=policy.digest, tests=tests)
    assert rationales(begin(weft, running("echo x > made.txt"))) == ["ours"]


IGNORED = (
    ("mkdir .vscode && echo {} > .vscode/tasks.json && echo .vscode/ >> .gitignore", ".vscode/tasks.json"),
    ("mkdir a && echo all: > a/Makefile && printf '*' > a/.gitignore", "a/Makefile"),
    ("mkdir fetched && echo x > fetched/.envrc", "fetched/.envrc"),
    ("echo changed > kept.sqlite.mk", "kept.sqlite.mk"),
    ("mv plain .husky && echo .husky >> .gitignore", ".husky/pre-commit"),
    ("ln -s plain .idea && echo .idea >> .gitignore", ".idea"),
    ("mkdir .hg && echo '[hooks]' > .hg/hgrc && echo .hg >> .gitignore", ".hg/hgrc"),
)


NAMED = share(IGNORED, test=3)


@pytest.mark.parametrize(("command", "path"), NAMED, ids=[path for _, path in NAMED])
def test_what_runs_by_itself_is_named_also_where_rules_that_the_command_wrote_ignore_it(
    weft: Shell, project: Path, command: str, path: str
) -> None:
    (project / ".gitignore").write_text("*.sqlite\n*.sqlite.mk\nfetched/\n.weft/\nours/\n.envrc\n")
    (project / "kept.sqlite.mk").write_text("all:\n")
    (project / ".envrc").write_text("export KEY=secret\n")
    (project / "ours").mkdir()
    (project / "ours" / "Makefile").write_text("all:\n")
    (project / "plain").mkdir()
    (project / "plain" / "pre-commit").write_text("#!/bin/sh\n")
    with serving(running(command), chat(), running("echo x > b.txt"), chat()) as server, refusing(weft) as asked:
        assert weft("provider", "configure", "there", "--base-url", server.url).code == 0
        first = weft.json("send", "--session", "talk", "Begin")
        shown = weft.json("diff", "--files")["runs_by_itself"]
        second = weft.json("send", "--session", "talk", "Go on")
    assert asked == []
    assert (first["runs_by_itself"].keys(), shown.keys()) == ({path}, {path})
    assert second["runs_by_itself"] == {}
