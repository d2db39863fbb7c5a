"""A hostile workspace makes links, scripts and version files that lead elsewhere: nothing of that is shown."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.homes import ProjectAndHome, link, program
from tests.sandbox import UNPROTECTED, machine_sandbox
from weft.runtime.sandbox import command_runner
from weft.runtime.sandbox.command_runner import CommandRunner
from weft.runtime.sandbox.processes import ProcessOutcome
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, MountKind, is_beneath
from weft.runtime.sandbox.sandbox_plan import PersonFolders
from weft.runtime.sandbox.toolchains import PersonalHome, Toolchains, find_toolchains

CANARY = "canary-of-the-home-folder"
SECRETS = (
    ".ssh/id_rsa", ".cargo/credentials.toml", ".pyenv/versions/3.11.4/pip.conf", ".config/gh/hosts.yml", ".netrc",
    "../eve/notes",
)  # fmt: skip
SHOWN = (".pyenv/versions/3.11.4", ".cargo/bin", ".nvm/versions/node/v20.1.0", ".nvm/alias")


@pytest.fixture
def place(tmp_path: Path) -> ProjectAndHome:
    """A home folder with keys, with version managers, and beside that of another person."""
    place = ProjectAndHome(tmp_path)
    place.python("3.11.4")
    program(place.home / ".cargo/bin/cargo")
    program(place.home / ".nvm/versions/node/v20.1.0/bin/node")
    program(place.home / ".nvm/alias/default", "20\n")
    for secret in SECRETS:
        program(Path(os.path.normpath(place.home / secret)), CANARY)
    return place


def _pipe(place: ProjectAndHome) -> None:
    os.mkfifo(place.project / ".python-version")


def _loop(place: ProjectAndHome) -> None:
    link(place.project / ".venv/bin/python", "python3")
    link(place.project / ".venv/bin/python3", "python")


def _text(file: str, text: str) -> Callable[[ProjectAndHome], None]:
    def write(place: ProjectAndHome) -> None:
        program(place.project / file, text.replace("~", str(place.home)))

    return write


def _link(file: str, target: str) -> Callable[[ProjectAndHome], None]:
    def make(place: ProjectAndHome) -> None:
        link(place.project / file, target.replace("~", str(place.home)))

    return make


PYTHON = ".venv/bin/python"
TRICKS: dict[str, Callable[[ProjectAndHome], None]] = {
    "a link to a key": _link(PYTHON, "~/.ssh/id_rsa"),
    "a link to a manager's keys": _link(PYTHON, "~/.cargo/credentials.toml"),
    "a link to another person's home": _link(PYTHON, "~/../eve/notes"),
    "a link to the home folder": _link(PYTHON, "~"),
    "a link to the root": _link(PYTHON, "/"),
    "a link out of a version": _link(PYTHON, "~/.pyenv/versions/3.11.4/../../../.ssh/id_rsa"),
    "a link to all versions": _link(PYTHON, "~/.pyenv/versions"),
    "a link to a manager": _link(PYTHON, "~/.nvm"),
    "a link through the links of a process": _link(PYTHON, "/proc/self/root/~/.ssh/id_rsa"),
    "a link with two slashes": _link(PYTHON, "//~/.ssh/id_rsa"),
    "a relative link": _link(PYTHON, "../../../home/ada/.ssh/id_rsa"),
    "an environment that is a link": _link(".venv", "~/.ssh"),
    "a folder of programs that is a link": _link(".venv/bin", "~/.ssh"),
    "environments that are a link": _link(".tox", "~"),
    "packages that are a link": _link("node_modules", "~/.config"),
    "a version file that is a link": _link(".python-version", "~/.ssh/id_rsa"),
    "links in a circle": _loop,
    "a pipe": _pipe,
    "an environment made from the home folder": _text(".venv/pyvenv.cfg", "home = ~\n"),
    "an environment made from keys": _text(".venv/pyvenv.cfg", "home = ~/.ssh\nexecutable = ~/.netrc\n"),
    "a script run by a key": _text(".venv/bin/tool", "#!~/.ssh/id_rsa\n"),
    "a script run by another process' files": _text(".venv/bin/tool", "#!/proc/1/root~/.ssh/id_rsa\n"),
    "a version with folders in it": _text(".python-version", "../../.ssh\n.\n..\n/\n~\n"),
    "an alias with folders in it": _text(".nvmrc", "../../../.ssh/id_rsa\n"),
    "an alias beneath another": _text(".nvmrc", "lts/../../.ssh\n"),
    "a version that is a path": _text(".tool-versions", "python path:~/.ssh ref:~\n../../.ssh 1\n"),
    "a tool with folders in it": _text("mise.toml", '[tools]\n"../../.ssh" = "."\npython = "../.."\n'),
    "a toolchain that is a path": _text("rust-toolchain.toml", '[toolchain]\npath = "~/.ssh"\n'),
    "what is no text": _text(".tool-versions", "\x00\x1b[2J python \ud800 \n".encode(errors="replace").decode()),
    "a document without end": _text("mise.toml", "a = " + "[" * 5000),
}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_of_the_workspace_shows_nothing_of_the_home_folder(place: ProjectAndHome, trick: str) -> None:
    TRICKS[trick](place)
    toolchains = place.search()
    for mount in toolchains.mounts:
        inside = os.path.relpath(mount.place, place.home)
        assert any(is_beneath(inside, shown) for shown in SHOWN), mount
    assert CANARY not in str(toolchains)
    assert ".pyenv/versions/3.11.4/pip.conf" in place.hidden(toolchains)


@pytest.mark.parametrize("target", ["~", "~/..", "/", "~/.", "/proc/self/root"])
def test_nobody_is_told_to_show_a_folder_that_holds_the_home_folder(place: ProjectAndHome, target: str) -> None:
    _link(PYTHON, target)(place)
    told = [program.target for program in place.search().hidden]
    assert not any(is_beneath(str(place.home), path) for path in told)


def outcome_of(place: ProjectAndHome, script: str) -> ProcessOutcome:
    runner = CommandRunner(UNPROTECTED, sandbox=machine_sandbox(), person=PersonFolders(home=place.home))
    argv = ["/bin/sh", "-c", script]
    return asyncio.run(runner.run(WORKSPACE_PROFILE, argv, workspace=place.project))


def reading(place: ProjectAndHome) -> str:
    """Reads whatever can be read of the home folders, by every way that the tricks lay."""
    return (
        f"cat {place.project}/.venv/bin/* {place.project}/.venv/* {' '.join(str(place.home / one) for one in SECRETS)};"
        f"find {place.home.parent} -type f -exec cat {{}} +; ls -A {place.home}"
    )


def test_a_command_reads_no_key_whatever_links_there_are(place: ProjectAndHome) -> None:
    targets = ("~/.ssh/id_rsa", "~/.cargo/credentials.toml", "~/../eve/notes", "~", "/", "~/.netrc")
    for number, target in enumerate(targets):
        _link(f".venv/bin/python{number}", target)(place)
    _text(".venv/bin/tool", "#!~/.ssh/id_rsa\n")(place)
    _text(".venv/pyvenv.cfg", "home = ~\nexecutable = ~/.config/gh/hosts.yml\n")(place)
    outcome = outcome_of(place, reading(place))
    assert CANARY.encode() not in outcome.stdout
    assert set(outcome.stdout.decode().split()) >= {".pyenv", ".cargo", ".nvm"}
    assert not {".ssh", ".config", ".netrc"} & set(outcome.stdout.decode().split())


IN_VERSIONS = (
    ".asdf/installs/postgres/14.2/data/base/1/1259", ".asdf/installs/postgres/14.2/logs/today",
    ".asdf/installs/neo4j/5.1/var/lib/data", ".asdf/installs/ruby/3.2.0/etc/gemrc",
    ".asdf/installs/maven/3.9.6/apache-maven-3.9.6/conf/settings.xml",
    ".sdkman/candidates/maven/3.9.6/conf/settings.xml", ".sdkman/candidates/gradle/8.5/gradle.properties",
    ".sdkman/candidates/gradle/8.5/init.d/repository.gradle", ".sdkman/candidates/tomcat/10.1/conf/tomcat-users.xml",
    "miniconda3/envs/work/etc/conda/activate.d/env_vars.sh",
    ".pyenv/versions/3.11.4/etc/jupyter/jupyter_server_config.json", ".pyenv/versions/3.11.4/envs/other/pip.conf",
    ".local/share/fnm/node-versions/v21.2.0/installation/etc/npmrc",
)  # fmt: skip


def test_versions_that_a_workspace_asks_for_show_no_settings_and_no_databases(place: ProjectAndHome) -> None:
    """A repository names versions; what a server of that version stored, and keys of package managers, lie in them."""
    for path in IN_VERSIONS:
        program(place.home / path, CANARY)
    programs = [".asdf/installs/postgres/14.2/bin/psql", ".sdkman/candidates/maven/3.9.6/bin/mvn"]
    node = ".local/share/fnm/node-versions/v21.2.0/installation/bin/node"
    for path in (*programs, "miniconda3/envs/work/bin/python3", node):
        program(place.home / path)
    _text(".tool-versions", "postgres 14.2\nneo4j 5.1\nruby 3.2.0\nmaven 3.9.6\npython 3.11.4\n")(place)
    _text(".sdkmanrc", "maven=3.9.6\ngradle=8.5\ntomcat=10.1\n")(place)
    link(place.project / PYTHON, place.home / "miniconda3/envs/work/bin/python3")
    link(place.project / ".venv/bin/node", place.home / node)
    outcome = outcome_of(place, f"{reading(place)}; grep -rl {CANARY} {place.home}; {place.home / programs[0]}")
    assert CANARY.encode() not in outcome.stdout
    assert b"started" in outcome.stdout


SWAPPED = (PYTHON, ".venv/pyvenv.cfg", ".python-version", ".venv")


@pytest.mark.parametrize("swapped", SWAPPED)
def test_what_is_swapped_after_it_was_read_shows_nothing_more(
    place: ProjectAndHome, monkeypatch: pytest.MonkeyPatch, swapped: str
) -> None:
    """The attacker waits until the search has ended, and replaces what it read before the sandbox is made."""
    link(place.project / PYTHON, place.home / ".pyenv/versions/3.11.4/bin/python3.11")
    _text(".venv/pyvenv.cfg", "home = ~/.pyenv/versions/3.11.4/bin\n")(place)
    _text(".python-version", "3.11.4\n")(place)

    def search_and_swap(*arguments: Any) -> Toolchains:
        toolchains = find_toolchains(*arguments)
        path = place.project / swapped
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        link(path, place.home / ".ssh" / ("id_rsa" if swapped != ".venv" else ""))
        return toolchains

    monkeypatch.setattr(command_runner, "find_toolchains", search_and_swap)
    outcome = outcome_of(place, reading(place))
    assert (place.project / swapped).is_symlink()
    assert CANARY.encode() not in outcome.stdout


@pytest.mark.slow("makes ten thousand links, and looks at their folder")
def test_ten_thousand_links_are_not_all_followed(place: ProjectAndHome, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        place.python(f"3.10.{number}")
    folder = place.project / ".venv/bin"
    folder.mkdir(parents=True)
    for number in range(10_000):
        (folder / f"python{number}").symlink_to(place.home / f".pyenv/versions/3.10.{number % 100}/bin/python3.11")
    read: list[Any] = []
    read_link = os.readlink

    def counted(*words: Any, **how: Any) -> Any:
        read.append(words)
        return read_link(*words, **how)

    monkeypatch.setattr(os, "readlink", counted)
    toolchains = place.search()
    assert len(read) < 1000
    assert 0 < len([mount for mount in toolchains.mounts if mount.kind is MountKind.READ_ONLY]) < 100


def test_a_manager_in_the_workspace_is_none(place: ProjectAndHome) -> None:
    """What an agent could have written is not preferred to the system's programs."""
    home = PersonalHome(folder=str(place.home))
    program(place.home / "go/src/project/sdk/go1/bin/go")
    for workspace in (place.home, place.home.parent, place.home / ".pyenv", place.home / ".cargo"):
        toolchains = find_toolchains(home, str(workspace))
        assert not any(is_beneath(mount.place, str(workspace)) for mount in toolchains.mounts)
        assert not any(is_beneath(folder, str(workspace)) for folder in toolchains.first_folders)
    link(place.home / ".rustup", place.project / "planted")
    link(place.home / ".sdkman/candidates", place.project / "planted/toolchains")
    program(place.project / "planted/toolchains/evil/1/bin/cargo")
    for name in (".rustup", ".sdkman", "planted"):
        assert name not in str(place.search())


def test_a_version_that_is_a_link_to_keys_is_none(place: ProjectAndHome) -> None:
    """A person may have made it, for a while: nothing is shown by it that is no version."""
    for name, target in (("keys", ".ssh"), ("all", "."), ("up", ".pyenv"), ("versions", ".pyenv/versions")):
        link(place.home / ".pyenv/versions" / name, place.home / target)
    _text(".python-version", "keys\nall\nup\nversions\n")(place)
    assert {mount.source for mount in place.search().mounts if mount.source and ".pyenv" in mount.source} == {
        str(place.home / ".pyenv/versions/3.11.4")
    }
