"""A file of the workspace that the person's own git runs, because their configuration names it, is named where people
look at what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.inference.asking import CANARY
from tests.runtime.sandbox.repositories import make_repository, person_git
from tests.runtime.scripted import chat
from tests.surfaces.serving import serving
from tests.surfaces.shell import Shell
from tests.surfaces.test_cli_broker import beside
from tests.surfaces.test_cli_self_running import approving, calling, equip
from weft.runtime.sandbox.git_view import GitPerson, GitPrograms

WAYS = {
    "core.hooksPath": ("tools/checks", "tools/checks/pre-commit"),
    "init.templateDir": ("~/repository/tools/template", "tools/template/hooks/post-checkout"),
    "core.fsmonitor": ("./tools/watch", "tools/watch"),
    "core.sshCommand": ("tools/ssh -4", "tools/ssh"),
    "filter.own.clean": ("python3 tools/clean.py %f", "tools/clean.py"),
    "filter.own.smudge": ("sh -c 'cat | \"$HOME/repository/tools/smudge\"'", "tools/smudge"),
    "filter.own.process": ('"$(git rev-parse --show-toplevel)/tools/filter"', "tools/filter"),
    "diff.own.textconv": ("~/repository/tools/text", "tools/text"),
    "diff.own.command": ("${TOOLS}/tools/compare", "tools/compare"),
    "merge.own.driver": ("Tools/merge.sh %A %O %B", "tools/merge.sh"),
    "alias.look": ("!bash look.sh", "look.sh"),
}


def runners(home: Path, *paths: str, workspace: Path | None = None) -> dict[str, str]:
    person = GitPerson(settings=(str(home / ".gitconfig"),), home=home)
    return GitPrograms(workspace or home / "repository", person).self_running(paths)


@pytest.mark.parametrize("key", WAYS)
@pytest.mark.parametrize("place", ["the person's", "the repository's", "an included file"])
def test_what_a_configuration_names_is_known(tmp_path: Path, key: str, place: str) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    value, path = WAYS[key]
    assert runners(tmp_path, path) == {}
    file = {
        "the person's": tmp_path / ".gitconfig",
        "the repository's": repository / ".git/config",
        "an included file": tmp_path / "more",
    }[place]
    if place == "an included file":
        person_git(repository, "config", "--file", str(tmp_path / ".gitconfig"), "include.path", "more")
    person_git(repository, "config", "--file", str(file), key, value)
    assert runners(tmp_path, path, "file", "tools/other") == {path: f"git, as {key} says"}


def test_a_workspace_in_a_repository_and_a_repository_in_a_workspace_have_their_programs(tmp_path: Path) -> None:
    outer = make_repository(tmp_path / "repository", files={"below/file": "one\n"})
    inner = make_repository(outer / "below/inner", files={"file": "two\n"})
    person_git(outer, "config", "core.hooksPath", "below/hooks")
    person_git(inner, "config", "core.hooksPath", "checks")
    paths = ("hooks/pre-push", "inner/checks/pre-push", "file")
    assert list(runners(tmp_path, *paths, workspace=outer / "below")) == ["hooks/pre-push", "inner/checks/pre-push"]


def test_what_a_link_leads_to_is_known_and_so_is_the_link(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", files={"scripts/check": "one\n", "real/pre-push": "two\n"})
    (repository / ".git/hooks").mkdir(exist_ok=True)
    (repository / ".git/hooks/pre-commit").symlink_to("../../scripts/check")
    (repository / "checks").symlink_to("real")
    person_git(repository, "config", "core.hooksPath", "checks")
    paths = ("scripts/check", "real/pre-push", "checks", "checks/pre-push", "real")
    assert list(runners(tmp_path, *paths)) == ["scripts/check", "real/pre-push", "checks", "checks/pre-push"]


def test_what_only_looks_so_is_not_named(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "repository", files={"file": "one\n"})
    for key, value in {"core.fsmonitor": "true", "core.editor": "vim", "user.name": "tools/ada"}.items():
        person_git(repository, "config", key, value)
    assert runners(tmp_path, "true", "vim", "tools/ada") == {}


@pytest.mark.parametrize("tool", ["write", "shell"])
def test_people_are_told_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tool: str
) -> None:
    (tmp_path / "home").mkdir()
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("WEFT_LEDGER", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    weft = Shell(folder, monkeypatch, capsys)
    assert weft("init").code == 0
    monkeypatch.setenv("THERE_KEY", CANARY)
    monkeypatch.setenv("USER", "tester")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "own-settings"))
    (tmp_path / "own-settings").write_text("[core]\n\thooksPath = tools/checks\n")
    path = "tools/checks/pre-commit"
    line = f"mkdir -p tools/checks && echo evil > {path}"
    arguments = {"path": path, "content": "evil\n"} if tool == "write" else {"cmd": line}
    shown: list[str] = []
    with serving(calling(tool, **arguments), chat()) as server:
        equip(weft, server.url)
        with beside(weft, approving(shown)):
            sent = weft("send", "--session", "talk", "Begin")
    named = f"runs by itself: {path} (git, as core.hooksPath says)"
    assert sent.code == 0, sent.err
    assert named in shown[0]
    assert named in sent.err
    told = weft("diff", "--files", "--json")
    assert told.json["runs_by_itself"] == {path: "git, as core.hooksPath says"}
