"""Commands in the sandbox look for secrets that lie in the workspace, unasked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.runtime.sandbox.repositories import make_repository, person_git
from tests.sandbox import machine_sandbox
from weft.kernel.errors import InvalidInput
from weft.runtime.sandbox import hidden_places
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.sandbox.profiles import SandboxProfile, parse_profile
from weft.runtime.tool.tool_contract import ToolCallContext
from weft.runtime.tools.shell import ShellTool

CANARY = "canary-77e0"
KEY = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n"
SECRETS = {
    ".env": CANARY,
    ".env.production": CANARY,
    ".env-local": CANARY,
    ".envrc": CANARY,
    "apps/web/.env": CANARY,
    ".docker/config.json": CANARY,
    "infra/terraform.tfstate": CANARY,
    "infra/terraform.tfstate.backup": CANARY,
    ".netrc": CANARY,
    ".git-credentials": CANARY,
    ".npmrc": f"//registry.npmjs.org/:_authToken={CANARY}",
    ".pypirc": f"password = {CANARY}",
    "keys/server.pem": KEY,
    "keys/server.key": KEY,
    "keys/id_ed25519": CANARY,
    "own.secret": CANARY,
    "own-7.keys": CANARY,
}
PLAIN = (
    ".env.example", ".env.sample", ".env.template", "apps/config.json", "keys/public.pem", "keys/id_rsa.pub",
    "environment.py", "sub/.npmrc", "venv/.env/activate",
)  # fmt: skip
PROFILES = [parse_profile("workspace"), parse_profile("read-only"), parse_profile("network:public.example")]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    for name, text in {**SECRETS, **dict.fromkeys(PLAIN, "plain\n")}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to("own.secret")
    return tmp_path


def runner(secrets: SecretFiles | None = None) -> CommandRunner:
    secrets = secrets or SecretFiles(more=("*.secret", "own-[0-9].key?"))
    return CommandRunner(ProtectedPlaces(ledgers=(), folders=(), secrets=secrets), sandbox=machine_sandbox())


def run(
    workspace: Path, script: str, profile: SandboxProfile = PROFILES[0], secrets: SecretFiles | None = None
) -> ProcessOutcome:
    return asyncio.run(runner(secrets).run(profile, ["/bin/sh", "-c", script], workspace=workspace))


@pytest.mark.parametrize("profile", PROFILES, ids=str)
def test_no_command_reads_a_file_of_secrets(workspace: Path, profile: SandboxProfile) -> None:
    outcome = run(workspace, "find . -type f -exec cat {} +; cat link", profile)
    assert CANARY.encode() not in outcome.stdout
    assert outcome.stdout.count(b"plain\n") == len(PLAIN)


def test_no_command_changes_or_moves_one(workspace: Path) -> None:
    changes = "for f in $(find . -name '*env*' -o -name '*.secret'); do echo x > $f; rm -f $f; mv $f x; ln $f y; done"
    run(workspace, f"{changes}; cp .env copy; cat copy")
    assert {name: (workspace / name).read_text() for name in SECRETS} == SECRETS
    assert not any(CANARY in path.read_text() for path in workspace.glob("[xyc]*") if path.is_file())


@pytest.mark.parametrize("name", [".env", "server.pem", "deploy/.npmrc", ".env.link"])
def test_no_command_reads_a_pipe_into_which_a_manager_of_secrets_writes(tmp_path: Path, name: str) -> None:
    place = tmp_path / ("real" if name == ".env.link" else name)
    place.parent.mkdir(exist_ok=True)
    os.mkfifo(place)
    if name == ".env.link":
        (tmp_path / name).symlink_to("real")
    pipe = os.open(place, os.O_RDWR)
    try:
        os.write(pipe, CANARY.encode())
        outcome = run(tmp_path, f"timeout 1 cat {name}; mv {name} x; timeout 1 cat x; ln {name} y; timeout 1 cat y")
        assert CANARY.encode() not in outcome.stdout
        assert os.read(pipe, 100) == CANARY.encode()
    finally:
        os.close(pipe)


LEFT_BY_EDITORS = (
    "#.env#", ".netrc~", "#id_rsa#", "id_rsa~", ".id_rsa.swp", ".id_rsa.swo", "id_ed25519.bak", ".server.pem.swp",
    "server.pem~", "#.npmrc#", "terraform.tfstate~", ".docker/config.json~", ".docker/.config.json.swp", ".pgpass.orig",
    ".own.secret.swp",
)  # fmt: skip
OTHER_CASES = (".ENV", ".Env.Production", "ID_RSA", "SERVER.PEM", ".Docker/Config.json", "Own.Secret", ".NPMRC")


@pytest.mark.parametrize("name", [*LEFT_BY_EDITORS, *OTHER_CASES])
def test_what_an_editor_leaves_of_a_file_of_secrets_is_one_and_so_is_its_name_in_other_letters(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(f"{KEY} _auth")
    assert CANARY.encode() not in run(tmp_path, "find . -type f -exec cat {} +").stdout
    (tmp_path / "plain.txt~").write_text("plain")
    assert run(tmp_path, "cat plain.txt~").stdout == b"plain"


@pytest.mark.parametrize("link", [".docker", ".config", ".config/gh"])
def test_a_file_that_a_linked_folder_makes_one_of_secrets_is_hidden_where_it_lies(tmp_path: Path, link: str) -> None:
    names = {".docker": "config.json", ".config": "gh/hosts.yml", ".config/gh": "hosts.yml"}
    real = tmp_path / "real" / names[link]
    real.parent.mkdir(parents=True)
    real.write_text(CANARY)
    (tmp_path / link).parent.mkdir(exist_ok=True)
    (tmp_path / link).symlink_to(tmp_path / "real")
    assert (
        CANARY.encode() not in run(tmp_path, f"cat {link}/{names[link]} real/{names[link]}; find real -type f").stdout
    )


@pytest.mark.parametrize("target", ["settings/real", "../beside"])
def test_a_link_of_a_secrets_name_uncovers_nothing(tmp_path: Path, target: str) -> None:
    workspace = tmp_path / "workspace"
    (workspace / "settings").mkdir(parents=True)
    (workspace / target).write_text(CANARY)
    (workspace / ".env").symlink_to(target)
    assert CANARY.encode() not in run(workspace, "cat .env settings/*").stdout
    assert (workspace / target).read_text() == CANARY


def test_what_the_person_shows_is_seen_and_nothing_else(workspace: Path) -> None:
    secrets = SecretFiles(shown=lambda: [str(workspace / ".envrc")])
    assert run(workspace, "cat .envrc .env", secrets=secrets).stdout == CANARY.encode()


def test_a_failed_command_is_told_which_hidden_file_it_looked_for(workspace: Path) -> None:
    assert run(workspace, "cat .env.production; false").hidden == (".env.production",)
    assert run(workspace, "echo no key in .envrc >&2; exit 2").hidden == (".envrc",)
    assert set(run(workspace, "cd apps/web && test -s .env").hidden) == {".env", "apps/web/.env"}
    assert run(workspace, "cat .env").hidden == (".env", "apps/web/.env")
    assert run(workspace, "test -e .env").hidden == ()
    assert run(workspace, "ls my.env .envrc2 .env_x").hidden == ()
    tool = ShellTool(workspace, runner=runner())
    result = asyncio.run(tool.invoke({"cmd": "test -s .netrc"}, ToolCallContext(turn="", call="")))
    assert (result["rc"], result["hidden"]) == (1, [".netrc"])


@pytest.mark.parametrize("adding", ["git commit -qam x", "git add -A", "git stash -q", "git add -f .env"])
@pytest.mark.parametrize("is_tracked", [True, False])
def test_git_takes_a_hidden_file_for_no_empty_one(tmp_path: Path, adding: str, is_tracked: bool) -> None:
    """It would be recorded so, and be emptied where somebody goes back to that."""
    space = make_repository(tmp_path / "space", files={"a": "1\n", **({".env": CANARY} if is_tracked else {})})
    (space / ".env").write_text(CANARY)
    (space / "a").write_text("2\n")
    before = person_git(space, "rev-parse", "HEAD"), person_git(space, "ls-files", "--stage")
    outcome = run(space, adding)
    if is_tracked or "add" in adding:
        assert outcome.code != 0
        assert outcome.hidden == (".env",)
        assert (person_git(space, "rev-parse", "HEAD"), person_git(space, "ls-files", "--stage")) == before
    assert (space / ".env").read_text() == CANARY
    empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert empty not in person_git(space, "ls-files", "--stage") + person_git(
        space, "log", "--all", "--raw", "--no-abbrev"
    )


@pytest.mark.parametrize("pattern", ["", "/etc/x", "../x", "a//b", "./a"])
def test_a_pattern_that_names_nothing_in_a_workspace_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput, match="names no files of a workspace"):
        SecretFiles(more=(pattern,))


def test_more_files_to_hide_than_can_be_hidden_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_places, "MOST_COVERS", 20)
    for number in range(21):
        (tmp_path / f"{number}.secret").touch()
    with pytest.raises(InvalidInput, match="more than 20 files and folders that must be hidden"):
        run(tmp_path, "true")


def test_what_is_shown_while_commands_are_run_counts_from_the_next_one_on(workspace: Path) -> None:
    shown: list[str] = []
    commands = runner(SecretFiles(shown=lambda: shown))
    for texts in ([], [str(workspace / ".env")], []):
        shown[:] = texts
        outcome = asyncio.run(commands.run(PROFILES[0], ["cat", ".env"], workspace=workspace))
        assert outcome.stdout == (CANARY.encode() if texts else b"")
